"""Functions without the options that every call leaves as they are or gives the same value."""

from __future__ import annotations

import ast
import re
from typing import Any

Edit = tuple[int, int, str]
"""Of a text: from, to (in characters), what comes in place."""


def without_options(text: str) -> str:
    """A module whose own functions (`_name`) have no option that is the same in every call.

    The branches that it decides on go with it, and of the docstring all but its first paragraph. A function
    with comments stays as it is: they would be lost. Raises SyntaxError.
    """
    while True:
        tree = ast.parse(text)
        edits = next((found for node in tree.body if (found := _edits(node, tree, text))), None)
        if not edits:
            return text
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]


def _edits(node: ast.stmt, tree: ast.Module, text: str) -> list[Edit]:
    """What to change so that a function has an option less; nothing where it has none to lose."""
    if not isinstance(node, ast.FunctionDef) or not node.name.startswith("_") or node.decorator_list:
        return []
    source = ast.get_source_segment(text, node) or ""
    uses = [one for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id == node.name]
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and one.func in uses]
    if "#" in source or len(calls) != len(uses) or not calls or node.args.vararg or node.args.kwarg:
        return []
    if any(isinstance(one, ast.Starred) for call in calls for one in call.args):
        return []
    first = len(node.args.args) - len(node.args.defaults)
    for default, option in zip(node.args.defaults, node.args.args[first:], strict=True):
        place = node.args.args.index(option)
        given = [next((k for k in call.keywords if k.arg == option.arg), None) for call in calls]
        values = [default if keyword is None else keyword.value for keyword in given]
        if any(len(call.args) > place for call in calls) or len({ast.dump(value) for value in values}) != 1:
            continue
        if isinstance(values[0], ast.Constant):
            edits = [
                _removed(call, keyword, text) for call, keyword in zip(calls, given, strict=True) if keyword
            ]
            return [(*_span(node, text), _without(node, place, values[0].value)), *edits]
    return []


def _without(node: ast.FunctionDef, place: int, value: Any) -> str:
    node.args.defaults.pop(place - len(node.args.args))
    option = node.args.args.pop(place)
    written: ast.FunctionDef = _Deciding(option.arg, value).visit(node)
    said = ast.get_docstring(written)
    if said:
        written.body[0] = ast.Expr(ast.Constant(said.partition("\n\n")[0]))
    text = ast.unparse(ast.fix_missing_locations(written))
    for one in ast.walk(written):
        if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple) and one.value.elts:
            text = text.replace(ast.unparse(one), f"return {ast.unparse(one.value)[1:-1]}")
    return text


class _Deciding(ast.NodeTransformer):
    """A name as a constant, and without the branches that are then never taken."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.value) if node.id == self.name else node

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt]:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        return node.body if node.test.value else node.orelse

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            return node
        return node.body if node.test.value else node.orelse


def _removed(call: ast.Call, keyword: ast.keyword, text: str) -> Edit:
    """The call without that argument and the comma before it."""
    start, end = _span(keyword, text)
    before = re.search(r",?\s*$", text[:start])
    assert before is not None
    return before.start(), end, ""


def _span(node: Any, text: str) -> tuple[int, int]:
    """Where a node is in the text, in characters."""
    lines, starts = text.split("\n"), [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
