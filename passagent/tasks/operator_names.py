"""The operators of a forward method, read from its syntax tree."""

from __future__ import annotations

import ast

BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift",
}  # fmt: skip
COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Not: "not_"}
_BUILTINS = {"device", "slice", "int", "float", "bool"}
"""Plain calls that compute nothing on tensors; the methods of the same name do."""


def operator_names(forward: ast.FunctionDef) -> tuple[str, ...]:
    """In the order of execution: `silu` for a function or method, `add`, `iadd`, `getitem`, `setitem`."""
    names: list[str] = []
    for statement in forward.body:
        _statement(statement, names)
    return tuple(names)


def _statement(statement: ast.stmt, names: list[str]) -> None:
    match statement:
        case ast.Assign():
            _expression(statement.value, names)
            if isinstance(statement.targets[0], ast.Subscript):
                names.append("setitem")
        case ast.AugAssign():
            _expression(statement.value, names)
            names.append("i" + BINARY[type(statement.op)].rstrip("_"))
        case ast.Expr() | ast.Return() if statement.value is not None:
            _expression(statement.value, names)


def _expression(node: ast.AST, names: list[str]) -> None:
    for child in ast.iter_child_nodes(node):
        _expression(child, names)
    match node:
        case ast.Call(func=ast.Name(id=name)) if name not in _BUILTINS:
            names.append(name)
        case ast.Call(func=ast.Attribute(attr=name)) if name != "device":
            names.append(name)
        case ast.BinOp() if not _constant(node):
            names.append(BINARY[type(node.op)])
        case ast.UnaryOp() if not _constant(node):
            names.append(UNARY[type(node.op)])
        case ast.Compare():
            names.append(COMPARE.get(type(node.ops[0]), "is_"))
        case ast.Subscript():
            names.append("getitem")


def _constant(node: ast.AST) -> bool:
    """Only numbers: `-1`, `2 * 3`."""
    return not any(isinstance(child, ast.Name | ast.Call) for child in ast.walk(node))
