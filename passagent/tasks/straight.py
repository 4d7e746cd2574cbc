"""The graph of a forward that is a straight line of known operators, read from its text.

It is the graph that Dynamo captures of it (tests/test_tasks_straight.py holds one against the other), without
Dynamo, whose import takes longer than all the rest. Any other forward is left to Dynamo.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.tasks.as_written import EXTREMES, OF_NUMBERS, OPERATORS, SPLITTING
from passagent.tasks.module import device_tree
from passagent.tasks.operator_names import BINARY, COMPARE, UNARY
from passagent.tasks.reader import Subgraph, parameters

_Table = Mapping[type[ast.AST], Callable[..., Any]]
_BINARY: _Table = {
    kind: getattr(operator, BINARY[kind])
    for kind in (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult)
}
_INPLACE: _Table = {
    kind: getattr(operator, f"i{BINARY[kind]}") for kind in (ast.Add, ast.Sub, ast.Mult, ast.Div)
}
_COMPARE: _Table = {kind: getattr(operator, COMPARE[kind]) for kind in (ast.Lt, ast.LtE, ast.Gt, ast.GtE)}
"""Without equality, of which versions of Dynamo make one node or another."""
_UNARY: _Table = {kind: getattr(operator, UNARY[kind]) for kind in (ast.USub, ast.Invert)}

_MAKING = {"float": float, "slice": slice, "device": torch.device, "torch.device": torch.device}
_IMPORTS = ("import torch", "from torch import device")
_CONSTANTS = (torch.dtype, torch.memory_format, torch.layout)


class NotStraight(Exception):
    """Why Dynamo is needed."""


@dataclass(frozen=True)
class Captured:
    """`graph_module(*[inputs[i] for i in order])` is the list of outputs of `module(*inputs)`, flattened."""

    graph_module: fx.GraphModule
    order: list[int]
    """For each placeholder of the graph the position of its input."""


def read_graph(subgraph: Subgraph, device: str) -> Captured | None:
    """The graph of the subgraph's forward on `device` (`cpu`, `cuda:0`); None where that takes Dynamo.

    Raises TaskError where forward does not name its inputs one by one.
    """
    try:
        return _Reading(subgraph, device_tree(subgraph, device)).captured()
    except NotStraight:
        return None


@dataclass(frozen=True)
class _Input:
    """An input that nothing has used yet: it becomes a placeholder where an operator takes it."""

    name: str


class _Several:
    """What gives several tensors: Dynamo takes those that are used out of it at once, in their order."""

    def __init__(self, node: fx.Node) -> None:
        self._node = node
        self._items: dict[int, fx.Node] = {}

    def item(self, index: Any) -> fx.Node:
        if type(index) is not int or index < 0:
            raise NotStraight(f"[{index}] of several tensors")
        if index not in self._items:
            before = [self._items[k] for k in sorted(self._items) if k < index]
            with self._node.graph.inserting_after([self._node, *before][-1]):
                self._items[index] = self._node.graph.call_function(operator.getitem, (self._node, index))
        return self._items[index]


_TENSOR = (fx.Node, _Input)


class _Reading:
    def __init__(self, subgraph: Subgraph, tree: ast.Module) -> None:
        self._graph, self._order = fx.Graph(), list[int]()
        self._last: fx.Node | None = None
        """The last placeholder."""
        self._forward = _forward_of(tree)
        if any(meta.is_python_scalar for meta in subgraph.inputs):
            raise NotStraight("a number among the inputs")
        names = [one.arg for one in parameters(self._forward, subgraph.path / "model.py")]
        self._inputs = {name: position for position, name in enumerate(names)}
        self._values: dict[str, Any] = {name: _Input(name) for name in names}
        self._placeholders: dict[str, fx.Node] = {}
        self._named: set[fx.Node] = set()

    def captured(self) -> Captured:
        """Raises NotStraight."""
        *statements, last = self._forward.body
        for statement in statements:
            self._statement(statement)
        if not isinstance(last, ast.Return) or last.value is None:
            raise NotStraight("no return at the end")
        returned = self._returned(last.value)
        self._graph.output(tuple([self._handed_back(value) for value in returned]))
        self._graph.lint()
        return Captured(fx.GraphModule(torch.nn.Module(), self._graph), self._order)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets) if all(isinstance(target, ast.Name) for target in targets):
                value = self._value(statement.value)
                for target in targets:
                    self._store(ast.unparse(target), value)
            case ast.Assign(targets=[ast.Subscript() as target]):
                value = self._part(statement.value)
                stored_in, index = self._tensor(target.value), self._part(target.slice)
                if _has_tensor(index):
                    raise NotStraight(ast.unparse(statement))
                self._call(operator.setitem, stored_in, index, value)
            case ast.AugAssign(target=ast.Name(id=name)):
                given = self._tensor(statement.target), self._value(statement.value)
                self._store(name, self._call(_among(_INPLACE, statement.op), *given))
            case _:
                raise NotStraight(ast.unparse(statement))

    def _store(self, name: str, value: Any) -> None:
        """Bind a name; Dynamo calls a node by the first one that it is bound to."""
        self._values[name] = value
        if isinstance(value, fx.Node) and value.op != "placeholder" and value not in self._named:
            value._rename(name)
            self._named.add(value)

    def _returned(self, expression: ast.expr) -> list[Any]:
        if isinstance(expression, ast.Tuple | ast.List):
            return [value for item in expression.elts for value in self._returned(item)]
        value = self._value(expression)
        if not isinstance(value, (*_TENSOR, bool, int, float)):
            raise NotStraight(f"returns {ast.unparse(expression)}")
        return [value]

    def _handed_back(self, value: Any) -> Any:
        """An input that no operator takes has a placeholder only because it is returned."""
        if not isinstance(value, _Input):
            return value
        name = value.name
        return self._placeholders.get(name) or self._placeholder(name, f"in_{self._inputs[name]}")

    def _placeholder(self, name: str, called: str) -> fx.Node:
        """An input's, behind the others: in the order of their first use."""
        graph, last = self._graph, self._last
        with graph.inserting_before() if last is None else graph.inserting_after(last):
            self._last = self._placeholders[name] = graph.placeholder(called)
        self._order.append(self._inputs[name])
        return self._last

    def _used(self, value: Any) -> Any:
        if isinstance(value, _Input):
            name = value.name
            return self._placeholders.get(name) or self._placeholder(name, f"L_{name}_")
        return value

    def _tensor(self, expression: ast.expr) -> fx.Node | _Input:
        value = self._value(expression)
        if not isinstance(value, _TENSOR):
            raise NotStraight(f"{ast.unparse(expression)} is no tensor")
        return value

    def _value(self, expression: ast.expr) -> Any:  # noqa: PLR0911
        """A node, several tensors, or a constant (that may hold nodes)."""
        match expression:
            case ast.Constant():
                return expression.value
            case ast.Name(id=name):
                if name in self._values:
                    return self._values[name]
                if name == "Ellipsis":
                    return ...
            case ast.Tuple():
                return tuple(self._part(item) for item in expression.elts)
            case ast.List():
                return [self._part(item) for item in expression.elts]
            case ast.Slice():
                ends = (expression.lower, expression.upper, expression.step)
                return slice(*[None if end is None else self._part(end) for end in ends])
            case ast.UnaryOp():
                function, value = _among(_UNARY, expression.op), self._value(expression.operand)
                if isinstance(value, _TENSOR):
                    return self._call(function, value)
                if type(value) in (int, float):
                    return function(value)
            case ast.BinOp():
                return self._binary(_among(_BINARY, expression.op), expression.left, expression.right)
            case ast.Compare(ops=[op], comparators=[right]) if not isinstance(expression.left, ast.Constant):
                return self._binary(_among(_COMPARE, op), expression.left, right)
            case ast.Subscript():
                return self._subscript(expression)
            case ast.Attribute():
                if isinstance(found := self._of_torch(self._dotted(expression)), _CONSTANTS):
                    return found
            case ast.Call():
                return self._called(expression)
        raise NotStraight(ast.unparse(expression))

    def _part(self, expression: ast.expr) -> Any:
        """A value among others: not several tensors."""
        value = self._value(expression)
        if isinstance(value, _Several):
            raise NotStraight(f"{ast.unparse(expression)} as a whole")
        return value

    def _binary(self, function: Callable[..., Any], left: ast.expr, right: ast.expr) -> fx.Node:
        operands = [self._value(left), self._value(right)]
        numbers = [value for value in operands if not isinstance(value, _TENSOR)]
        if len(numbers) > 1 or not all(type(value) in (bool, int, float) for value in numbers):
            raise NotStraight(f"{ast.unparse(left)} and {ast.unparse(right)}")
        return self._call(function, *operands)

    def _subscript(self, expression: ast.Subscript) -> fx.Node:
        value, index = self._value(expression.value), self._part(expression.slice)
        if isinstance(value, _Several):
            return value.item(index)
        if not isinstance(value, _TENSOR) or _has_tensor(index):
            raise NotStraight(ast.unparse(expression))
        return self._call(operator.getitem, value, index)

    def _called(self, call: ast.Call) -> Any:
        name = self._dotted(call.func)
        given: list[Any] = []
        if name is None and isinstance(call.func, ast.Attribute):
            name = f".{call.func.attr}"
            given = [self._used(self._tensor(call.func.value))]
        given += [self._part(argument) for argument in call.args]
        named = {keyword.arg or "**": self._part(keyword.value) for keyword in call.keywords}
        if "**" in named:
            raise NotStraight(ast.unparse(call))
        if name in _MAKING:
            return _made(_MAKING[name], given, named)
        if name not in OPERATORS | SPLITTING | EXTREMES or _is_sized_by_data(name, given):
            raise NotStraight(ast.unparse(call))
        node = self._call(name[1:] if name.startswith(".") else self._of_torch(name), *given, **named)
        along = "dim" in named or not all(_has_tensor(value) for value in given)
        return _Several(node) if name in SPLITTING or (name in EXTREMES and along) else node

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        args, kwargs = fx.node.map_aggregate((args, kwargs), self._used)
        if isinstance(function, str):
            return self._graph.call_method(function, args, kwargs)
        return self._graph.call_function(function, args, kwargs)

    def _dotted(self, expression: ast.expr) -> str | None:
        """`torch.nn.functional.relu` of what the module's own text means by it, else None."""
        words: list[str] = []
        while isinstance(expression, ast.Attribute):
            words.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name) or expression.id in self._values:
            return None
        return ".".join([expression.id, *reversed(words)])

    def _of_torch(self, name: str | None) -> Any:
        """What a dotted name leads to; None where it is none of torch's."""
        root, _, path = (name or "").partition(".")
        try:
            return operator.attrgetter(path)(torch) if root == "torch" and path else None
        except AttributeError as error:
            raise NotStraight(f"this torch has no {name}") from error


def _forward_of(tree: ast.Module) -> ast.FunctionDef:
    """The forward of a module whose text holds nothing else: `torch` and `device` are torch's."""
    match tree.body:
        case [
            *imports,
            ast.ClassDef(
                name="GraphModule",
                bases=[base],
                keywords=[],
                decorator_list=[],
                body=[ast.FunctionDef(name="forward", decorator_list=[]) as forward],
            ),
        ] if ast.unparse(base) == "torch.nn.Module":
            if all(ast.unparse(line) in _IMPORTS for line in imports):
                return forward
    raise NotStraight("more than a forward")


def _among(table: _Table, op: ast.AST) -> Callable[..., Any]:
    if type(op) not in table:
        raise NotStraight(type(op).__name__)
    return table[type(op)]


def _has_tensor(values: Any) -> bool:
    """Whether a tensor is among these; one that indexes may be a mask."""
    found = list[Any]()
    fx.node.map_aggregate(values, found.append)
    return any(isinstance(value, _TENSOR) for value in found)


def _is_sized_by_data(name: str, given: list[Any]) -> bool:
    """Whether the size of what comes out depends on values: Dynamo adds what checks it."""
    return (name.endswith(".where") and len(given) < 3) or (name in OF_NUMBERS and _has_tensor(given))


def _made(kind: Callable[..., Any], given: list[Any], named: dict[str, Any]) -> Any:
    if _has_tensor((given, named)):
        raise NotStraight(f"a {kind.__name__} of a tensor")
    try:
        return kind(*given, **named)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotStraight(str(error)) from error
