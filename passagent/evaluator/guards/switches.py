"""What a constant of the file switches off, such as a check against eager under `if DEBUG:`, never runs.

As with idioms.py the loader compiles the tree from which it is taken out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from passagent.evaluator.guards.trees import counted, imported, is_kernel

_CALLED: dict[str, type] = {"bool": bool, "int": int, "str": str}
_METHODS: dict[str, Callable[[Any], str]] = {"lower": str.lower, "strip": str.strip, "upper": str.upper}


def write_out(tree: ast.Module) -> None:
    """Take out of a file's tree what its constants switch off."""
    meanings = counted(tree)
    if meanings.keys() & _CALLED.keys():
        return  # mean something else here
    off: set[str] = set()
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None and meanings[target.id] == 1:
            with suppress(ValueError, TypeError):
                off |= set() if _value(value) else {target.id}
    _Off(off, imported(tree)).visit(tree)


class _Off(ast.NodeTransformer):
    def __init__(self, off: set[str], imports: dict[str, str]) -> None:
        self.off, self.imports = off, imports

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node if is_kernel(node, self.imports) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        test = node.test
        while isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test = test.values[0]
        if isinstance(test, ast.Name) and test.id in self.off:
            return node.orelse or ast.copy_location(ast.Pass(), node)
        return node


def _value(node: ast.expr) -> Any:
    """What an expression of constants is; ValueError for any other."""
    match node:
        case ast.Compare(ops=[ast.Eq()], comparators=[other]):
            return _value(node.left) == _value(other)
        case ast.Compare(ops=[ast.In()], comparators=[other]):
            return _value(node.left) in _value(other)
        case ast.Call(func=ast.Name(id=name), args=[one], keywords=[]) if name in _CALLED:
            return _CALLED[name](_value(one))
        case ast.Call(func=ast.Attribute(value=text, attr=name), args=[], keywords=[]) if name in _METHODS:
            return _METHODS[name](_value(text))
        case _:
            return ast.literal_eval(node)
