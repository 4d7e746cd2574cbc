"""What a Python file is, as far as its text tells: parsed once, whoever asks."""

from __future__ import annotations

import ast
import functools
from typing import NamedTuple


class Parsed(NamedTuple):
    """Of a Python file."""

    tree: ast.Module | None
    """Not to be changed: others see it, too."""
    error: SyntaxError | ValueError | RecursionError | MemoryError | None
    """Why it does not parse."""

    @property
    def problem(self) -> str | None:
        """The error in words."""
        if isinstance(self.error, SyntaxError):
            return f"it does not parse: line {self.error.lineno}: {self.error.msg}"
        return f"it cannot be read: {self.error}" if self.error else None

    @property
    def docstring(self) -> str:
        """Empty where there is none."""
        return (ast.get_docstring(self.tree) or "") if self.tree else ""


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> Parsed:
    """The file of this text."""
    try:
        return Parsed(ast.parse(text), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Parsed(None, error.with_traceback(None))
