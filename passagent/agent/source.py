"""What a Python file is, as far as its text tells: parsed once, whoever asks."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
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


def tree_of(text: str) -> ast.Module:
    """The file's syntax tree, not to be changed. Raises what ast.parse raises."""
    found = parsed(text)
    if found.tree is None:
        assert found.error is not None
        raise found.error
    return found.tree


FIELDS = {
    kind: tuple(name for name in kind._fields if name not in ("ctx", "kind", "type_comment", "type_ignores"))
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""Of each kind of node the fields that make a program what it is; the others follow from where it stands."""


def children_of(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes right below a node, in order, those that only say how a name is used left out."""
    for name in FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            for item in value:
                if item.__class__ in FIELDS:
                    yield item
        elif value.__class__ in FIELDS:
            yield value


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree, each before what is below it; see children_of."""
    yield tree
    for child in children_of(tree):
        yield from nodes_of(child)
