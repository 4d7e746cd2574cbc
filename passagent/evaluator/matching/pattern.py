"""From the source of `pattern` to an fx graph that looks as Dynamo's would.

The body is interpreted, never executed: every call of a torch function becomes a node with its arguments as
written, also factories (`torch.arange(4)`), in-place operators (`x += y` is `operator.iadd`) and stores
(`x[...] = y` is `operator.setitem`), for which tracing with proxies has no node.
"""

from __future__ import annotations

import ast
import builtins
import operator
import types
from typing import Any, NoReturn

import torch
from torch import fx

from passagent.errors import PassagentError


class PassLoadError(PassagentError):
    """A candidate does not load; the message names the candidate's file and line."""


_BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.MatMult: operator.matmul, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip
INPLACE = {kind: getattr(operator, f"i{function.__name__.rstrip('_')}") for kind, function in _BINARY.items()}
_UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_}
_COMPARE = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_BUILDERS = (slice, tuple, list, range)
_VALUES = (torch.device, torch.Size, torch.finfo, torch.iinfo, int, float, bool, complex, len, min, max, abs)
_NUMBERS = ("shape", "dtype", "device", "ndim", "itemsize", "nbytes", "layout", "is_cuda", "requires_grad")
_MEASURES = ("size", "dim", "item", "tolist", "stride", "numel")
_FIELDS = {"values": 0, "indices": 1}
"""Fields of torch's named results, which Dynamo records by position."""


def trace_pattern(function: types.FunctionType, source: str, file: str) -> fx.Graph:
    """The graph of `pattern`: a placeholder for each parameter, one output (a node or a tuple of nodes).

    `source` is the text of the file that defines it. Raises PassLoadError for what cannot be part of a
    pattern: statements other than assignments and a final return, and calls of anything but torch.
    """
    definition = _definition(function, source, file)
    return _Interpreter(function.__globals__, file).run(definition)


def _definition(function: types.FunctionType, source: str, file: str) -> ast.FunctionDef:
    first = function.__code__.co_firstlineno
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if start == first:
                return node
    raise PassLoadError(f"{file}: pattern must be a plain function, written with def at the top of the file")


class _Interpreter:
    def __init__(self, names: dict[str, Any], file: str) -> None:
        self.names, self.file = names, file
        self.graph = fx.Graph()
        self.local: dict[str, Any] = {}
        self.unnamed: set[fx.Node] = set()

    def run(self, definition: ast.FunctionDef) -> fx.Graph:
        arguments = definition.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            self.fail(
                definition, "pattern takes plain parameters only, no *args, **kwargs or keyword-only ones"
            )
        for argument in [*arguments.posonlyargs, *arguments.args]:
            self.local[argument.arg] = self.graph.placeholder(argument.arg)
        for statement in definition.body:
            if isinstance(statement, ast.Return):
                self.finish(statement)
                return self.graph
            self.statement(statement)
        self.fail(definition, "pattern returns nothing; return the values that the rest of the graph uses")

    def finish(self, statement: ast.Return) -> None:
        result = self.expression(statement.value) if statement.value is not None else None
        results = result if isinstance(result, (tuple, list)) else [result]
        if not results or not all(isinstance(value, fx.Node) for value in results):
            self.fail(statement, "pattern must return one value of the graph or a flat tuple of them")
        self.graph.output(tuple(results) if isinstance(result, (tuple, list)) else result)
        for node in reversed(self.graph.nodes):
            if node.meta.get("unpacked") and not node.users:
                self.graph.erase_node(node)
        if all(node.op in ("placeholder", "output") for node in self.graph.nodes):
            self.fail(statement, "pattern holds no operator")
        for node in self.graph.nodes:
            if node.op == "placeholder" and all(user.op == "output" for user in node.users):
                self.fail(
                    statement, f"parameter {node.name} is used by no operator of the pattern; leave it out"
                )

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign():
                value = self.expression(statement.value)
                for target in statement.targets:
                    self.assign(target, value)
            case ast.AnnAssign(value=ast.expr() as expression):
                self.assign(statement.target, self.expression(expression))
            case ast.AugAssign():
                self.augmented(statement)
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Delete():
                pass
            case ast.Expr():
                self.expression(statement.value)
            case _:
                kind = type(statement).__name__.lower()
                self.fail(
                    statement, f"a pattern is a list of assignments and a return; it cannot hold `{kind}`"
                )

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self.local[target.id] = value
                if isinstance(value, fx.Node) and value in self.unnamed:
                    self.unnamed.discard(value)
                    value._rename(target.id)
            case ast.Subscript():
                self.call(
                    operator.setitem, [self.expression(target.value), self.expression(target.slice), value]
                )
            case ast.Tuple() | ast.List():
                self.unpack(target, value)
            case _:
                self.fail(target, "a pattern cannot store into an attribute")

    def unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        for i, item in enumerate(target.elts):
            if isinstance(item, ast.Starred):
                self.fail(target, "a pattern cannot unpack with *")
            if not isinstance(value, fx.Node):
                self.assign(item, value[i])
                continue
            part = self.call(operator.getitem, [value, i])
            self.assign(item, part)
            part.meta["unpacked"] = True

    def augmented(self, statement: ast.AugAssign) -> None:
        function = INPLACE[type(statement.op)]
        value = self.expression(statement.value)
        match statement.target:
            case ast.Name():
                old = self.expression(
                    ast.copy_location(ast.Name(statement.target.id, ast.Load()), statement.target)
                )
                self.assign(statement.target, self.apply(function, old, value))
            case ast.Subscript():
                base, index = self.expression(statement.target.value), self.expression(statement.target.slice)
                new = self.apply(function, self.apply(operator.getitem, base, index), value)
                self.call(operator.setitem, [base, index, new])
            case _:
                self.fail(statement, "a pattern cannot store into an attribute")

    def expression(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.name(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                return self.called(node)
            case ast.BinOp():
                left = self.expression(node.left)
                return self.apply(_BINARY[type(node.op)], left, self.expression(node.right))
            case ast.UnaryOp():
                return self.apply(_UNARY[type(node.op)], self.expression(node.operand))
            case ast.Compare(ops=[op]) if type(op) in _COMPARE:
                left = self.expression(node.left)
                return self.apply(_COMPARE[type(op)], left, self.expression(node.comparators[0]))
            case ast.Subscript():
                base = self.expression(node.value)
                return self.apply(operator.getitem, base, self.expression(node.slice))
            case ast.Slice():
                return slice(
                    *[self.expression(e) if e else None for e in (node.lower, node.upper, node.step)]
                )
            case ast.Tuple():
                return tuple(self.expression(item) for item in node.elts)
            case ast.List():
                return [self.expression(item) for item in node.elts]
            case _:
                self.fail(
                    node, f"a pattern cannot hold `{ast.unparse(node)}`; write the operators one by one"
                )

    def name(self, node: ast.Name) -> Any:
        for scope in (self.local, self.names, builtins.__dict__):
            if node.id in scope:
                return scope[node.id]
        self.fail(node, f"name '{node.id}' is not defined")

    def attribute(self, node: ast.Attribute) -> Any:
        base = self.expression(node.value)
        if isinstance(base, fx.Node):
            if node.attr in _NUMBERS:
                self.fail_plain(node)
            if node.attr in _FIELDS and base.op != "placeholder":
                return self.call(operator.getitem, [base, _FIELDS[node.attr]])
            return self.call(getattr, [base, node.attr])
        try:
            return getattr(base, node.attr)
        except AttributeError as error:
            self.fail(node, f"AttributeError: {error}")

    def called(self, node: ast.Call) -> Any:
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            self.fail(node, "a pattern cannot pass *args or **kwargs")
        base = self.expression(node.func.value) if isinstance(node.func, ast.Attribute) else None
        function: Any = None if isinstance(base, fx.Node) else self.expression(node.func)
        args = [self.expression(a) for a in node.args]
        kwargs = {str(k.arg): self.expression(k.value) for k in node.keywords}
        if isinstance(node.func, ast.Attribute) and isinstance(base, fx.Node):
            if node.func.attr in _MEASURES:
                self.fail_plain(node)
            return self.add("call_method", node.func.attr, [base, *args], kwargs)
        plain = function in _VALUES or getattr(function, "__module__", None) == "math"
        if function in _BUILDERS or (plain and not nodes_in([args, kwargs])):
            return function(*args, **kwargs)
        if not is_operator(function):
            self.fail(node, f"a pattern may call torch only, not `{ast.unparse(node.func)}`")
        return self.call(function, args, kwargs)

    def apply(self, function: Any, *args: Any) -> Any:
        """A node if an argument holds one, else the value."""
        return self.call(function, list(args)) if nodes_in(args) else function(*args)

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any] | None = None) -> fx.Node:
        return self.add("call_function", function, args, kwargs or {})

    def add(self, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> fx.Node:
        node = self.graph.create_node(op, target, tuple(args), kwargs)
        self.unnamed.add(node)
        return node

    def fail_plain(self, node: ast.expr) -> NoReturn:
        hint = "make it a parameter of pattern, or write the value"
        self.fail(node, f"`{ast.unparse(node)}` is a plain value in the captured graph: {hint}")

    def fail(self, node: ast.AST, message: str) -> NoReturn:
        raise PassLoadError(f"{self.file}:{getattr(node, 'lineno', 0)}: {message}")


def nodes_in(value: Any) -> list[fx.Node]:
    """The nodes in an argument, however deep."""
    nodes: list[fx.Node] = []
    fx.map_arg(value, nodes.append)
    return nodes


def is_operator(function: Any) -> bool:
    """A function of torch or of the operator module, and no class."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if isinstance(function, type) or not callable(function):
        return False
    module = getattr(function, "__module__", None) or "torch"  # torch's own built-ins have none
    return module.split(".")[0] in ("torch", "operator", "_operator")
