"""Compare one pattern node with one graph node: operators, literals, and which value stands against which.

Arguments are compared as written; if they were written in another form (by keyword, with a default left out),
both sides are first brought to names through the operator's signature.
"""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

_DEVICE = re.compile(r"(cpu|cuda|meta|mps|xpu|hip)(:\d+)?")
_SIZES_APART = {
    "view", "reshape", "permute", "expand", "repeat", "tile", "flip", "new_zeros", "new_ones", "new_empty",
    "zeros", "ones", "empty", "rand", "randn",
}  # fmt: skip
"""Take `(2, 3)` and `2, 3` alike."""
_SYNONYMS = {"input": "self", "axis": "dim", "keepdims": "keepdim"}


@dataclass
class Unified:
    """The consequences of a match of two nodes: pairs that must match too, and reasons against it."""

    pairs: list[tuple[fx.Node, Any]] = field(default_factory=list)
    """(pattern node, value of the graph: a node or a literal)."""
    differences: list[str] = field(default_factory=list)


def target_name(node: fx.Node) -> str:
    """`torch.nn.functional.relu`, `operator.iadd`, `.view`."""
    if isinstance(node.target, str):
        return f".{node.target}" if node.op == "call_method" else node.target
    name = getattr(node.target, "__name__", str(node.target))
    module = getattr(node.target, "__module__", None) or "torch"
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{node.target}"
    return f"{module.replace('_operator', 'operator').replace('torch._C._nn', 'torch.nn.functional')}.{name}"


def describe(node: fx.Node) -> str:
    """The node as a line of code: `tmp_2 = torch.nn.functional.relu(tmp_1, inplace=True)`.

    `repr` writes nodes in values by their names.
    """
    if node.op in ("placeholder", "get_attr", "output"):
        return f"{node.op} {node.name}" if node.op != "output" else "the graph's output"
    args = [repr(arg) for arg in node.args]
    args += [f"{key}={value!r}" for key, value in node.kwargs.items()]
    if node.op == "call_method":
        return f"{node.name} = {args[0]}.{node.target}({', '.join(args[1:])})"
    return f"{node.name} = {target_name(node)}({', '.join(args)})"


def key(node: fx.Node) -> tuple[str, Any]:
    """Equal for nodes of the same operator."""
    return node.op, node.target if isinstance(node.target, str) else _canonical(node.target)


@functools.cache
def _canonical(function: Any) -> Any:
    """Dynamo looks into a few functions of torch.nn.functional (`pad`) and records what they call."""
    name = getattr(function, "__name__", "")
    same = getattr(torch.nn.functional, name, None) is function
    return getattr(torch._C._nn, name, function) if same else function


def unify(pattern: fx.Node, graph: fx.Node) -> Unified:
    """Compare the arguments of two nodes of the same operator."""
    result = Unified()
    left, right = _named(pattern), _named(graph)
    if len(pattern.args) != len(graph.args) or pattern.kwargs.keys() != graph.kwargs.keys():
        forms = (form for form in _normal_forms(pattern, graph) if form[0].keys() == form[1].keys())
        left, right = next(forms, (left, right))
    if "_assert" in str(pattern.target):  # the second argument is a text that names nodes
        left, right = ({name: value for name, value in side.items() if name != "1"} for side in (left, right))
    for name in left.keys() | right.keys():
        if name not in left or name not in right:
            who, other, args = ("graph", "pattern", right) if name in right else ("pattern", "graph", left)
            result.differences.append(f"argument {name}: the {who} passes {args[name]!r}, the {other} none")
    for name in left:
        if name in right:
            _unify_values(left[name], right[name], f"argument {name}", result)
    return result


def same_literal(a: Any, b: Any, any_device: bool = False) -> bool:
    """Tell whether two literals are the same: of one type, floats bitwise (all NaN are one), list for tuple.

    2 is neither 2.0 nor True, and 0.0 is not -0.0. `any_device`: every device is every other.
    """
    same = functools.partial(same_literal, any_device=any_device)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, slice) and isinstance(b, slice):
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if any_device and _is_device(a) and _is_device(b):
        return True
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return a is b
    if type(a) is not type(b):
        return False
    return a.hex() == b.hex() if isinstance(a, float) else bool(a == b)


def _unify_values(left: Any, right: Any, where: str, result: Unified) -> None:
    if isinstance(left, fx.Node):
        result.pairs.append((left, right))
    elif isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        if len(left) != len(right):
            what = f"the pattern has {len(left)} elements {left!r}, the graph {len(right)} {right!r}"
            result.differences.append(f"{where}: {what}")
            return
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            _unify_values(a, b, f"{where}[{i}]", result)
    elif isinstance(left, slice) and isinstance(right, slice):
        for part in ("start", "stop", "step"):
            _unify_values(getattr(left, part), getattr(right, part), f"{where}.{part}", result)
    elif isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        for name in left:
            _unify_values(left[name], right[name], f"{where}[{name!r}]", result)
    elif not same_literal(left, right, any_device=True):
        advice = (
            "" if isinstance(right, fx.Node) else "; a parameter of pattern in its place would match both"
        )
        result.differences.append(f"{where}: the pattern has {left!r}, the graph {right!r}{advice}")


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and bool(_DEVICE.fullmatch(value)))


def _named(node: fx.Node) -> dict[str, Any]:
    return {**{str(i): arg for i, arg in enumerate(node.args)}, **node.kwargs}


def _normal_forms(a: fx.Node, b: fx.Node) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Both argument lists by name, for each signature that fits both."""
    forms = []
    if a.op == "call_function" and (signature := _signature(a.target)) is not None:
        try:
            left, right = (signature.bind(*n.args, **n.kwargs) for n in (a, b))
        except TypeError:
            return []
        left.apply_defaults()
        right.apply_defaults()
        return [(dict(left.arguments), dict(right.arguments))]
    name = str(a.target) if a.op == "call_method" else getattr(a.target, "__name__", "")
    name = name.partition(".")[0]  # of an overload
    for arguments in _schemas(name):
        left_named, right_named = (_by_schema(n, name, arguments) for n in (a, b))
        if left_named is not None and right_named is not None:
            forms.append((left_named, right_named))
    return forms


@functools.cache
def _signature(function: Any) -> inspect.Signature | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    kinds = {p.kind for p in signature.parameters.values()}
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} & kinds
    return None if variable else signature


@functools.cache
def _schemas(name: str) -> list[list[Any]]:
    """Arguments of each overload of `aten::name` without out arguments."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return [schema.arguments for schema in schemas if not any(a.is_out for a in schema.arguments)]


def _by_schema(node: fx.Node, name: str, arguments: list[Any]) -> dict[str, Any] | None:
    """The node's arguments by the schema's names, defaults filled in; None if they do not fit."""
    positional = [a for a in arguments if not a.kwarg_only]
    positions = list(node.args)
    if name in _SIZES_APART:
        first = 1 if node.op == "call_method" else 0
        if len(positions) > first + 1 or (len(positions) == first + 1 and isinstance(positions[first], int)):
            positions[first:] = [tuple(positions[first:])]
    if len(positions) > len(positional):
        return None
    bound = {a.name: value for a, value in zip(positional, positions, strict=False)}
    names = {a.name for a in arguments}
    for keyword, value in node.kwargs.items():
        canonical = keyword if keyword in names else _SYNONYMS.get(keyword, keyword)
        if canonical not in names or canonical in bound:
            return None
        bound[canonical] = value
    for argument in arguments:
        if argument.name not in bound:
            if not argument.has_default_value():
                return None
            bound[argument.name] = argument.default_value
    return bound
