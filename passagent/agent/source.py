"""What a Python file is, as far as its text tells: parsed once, however often it is asked for."""

from __future__ import annotations

import ast
import functools
from typing import NamedTuple


class Parsed(NamedTuple):
    """Of a Python file."""

    problem: str | None
    """Why it does not parse."""
    docstring: str
    """Empty where there is none."""


@functools.lru_cache(maxsize=64)
def parsed(text: str) -> Parsed:
    """The file of this text."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return Parsed(f"it does not parse: line {error.lineno}: {error.msg}", "")
    except (ValueError, RecursionError, MemoryError) as error:
        return Parsed(f"it cannot be read: {error}", "")
    return Parsed(None, ast.get_docstring(tree) or "")
