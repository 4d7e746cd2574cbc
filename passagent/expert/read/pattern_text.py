"""A region as the text of `pattern`: operators as Dynamo recorded them, literals that vary as parameters."""

from __future__ import annotations

import builtins
import keyword
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from passagent.evaluator.matching.unify import same_literal
from passagent.expert.graph import ALL_CONVOLUTIONS, argument, arguments, example, op_name, words
from passagent.expert.lower import Parameter, Path, Region

_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.pow: "**",
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.and_: "&", operator.or_: "|", operator.matmul: "@", operator.floordiv: "//",
    operator.mod: "%",
}  # fmt: skip

SHAPES = words("""
    view reshape unflatten expand repeat tile repeat_interleave getitem select narrow split roll pad
    arange zeros ones full layer_norm rms_norm group_norm
""")
"""Operators whose integers are sizes and positions."""

_NEVER = {
    "roll": {2, "dims"}, "unflatten": {1, "dim"}, "narrow": {1, "dim"}, "repeat_interleave": {2, "dim"},
    "split": {2, "dim"}, "select": {1, "dim"}, "full": {1, "fill_value"},
}  # fmt: skip
"""Arguments of them that name dimensions."""


_HOMES = (operator, torch.nn.functional, torch, torch.special, torch._C._nn)
"""Modules whose functions a pattern calls."""


def qualified(node: fx.Node) -> str | None:
    """How a pattern calls the operator; None if it cannot."""
    if node.op == "call_method":
        return f".{node.target}"
    name = getattr(node.target, "__name__", "")
    home = next((module for module in _HOMES if getattr(module, name, None) is node.target), None)
    return f"{home.__name__}.{name}" if home is not None else None


def structure(region: Region) -> tuple[Any, ...]:
    """Equal for regions that one pattern can match, up to numbers that can be parameters."""
    number = {n: f"%{k}" for k, n in enumerate([*region.inputs, *region.nodes])}
    rows = []
    for position, node in enumerate(region.nodes):
        leaves = []
        for path, value in arguments(node):
            if isinstance(value, fx.Node):
                leaves.append((path, number[value]))
            elif can_vary(node, path, value):
                leaves.append((path, type(value).__name__))
            else:
                leaves.append((path, repr(value)))
        rows.append((position, node.op, qualified(node), tuple(leaves)))
    return (*rows, tuple(number[o] for o in region.outputs))


def can_vary(node: fx.Node, path: Path, value: Any) -> bool:
    """Tell whether a literal may be a parameter of the pattern."""
    if isinstance(value, float):
        return not (math.isnan(value) or math.isinf(value))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return False
    name = op_name(node)
    if name == "getitem" and isinstance(example(node.all_input_nodes[0]), tuple | list):
        return False  # which of an operator's results
    return name in SHAPES and path[1] not in _NEVER.get(name, set()) and path[-1] != "step"


def parameters(regions: list[Region]) -> list[Parameter]:
    """Literals of equal structures that become parameters: sizes, and whatever differs among them."""
    varying: list[Parameter] = []
    first = regions[0]
    counts = Counter[str]()
    for position, node in enumerate(first.nodes):
        others = [dict(arguments(r.nodes[position])) for r in regions]
        for path, value in arguments(node):
            if not can_vary(node, path, value):
                continue
            differs = not all(same_literal(o[path], value) for o in others)
            unused = unused_in_inference(node, path)
            stem = unused or ("size" if isinstance(value, int) else "number")
            if unused or differs or (isinstance(value, int) and value > 1):
                counts[stem] += 1
                number = counts[stem] - (unused is None)  # size0, size1, ... and p, p2, ...
                name = stem if unused and number == 1 else f"{stem}{number}"
                varying.append(Parameter(name, position, path))
    return varying


_INFERENCE = {"dropout": ("p", 1, 2), "batch_norm": ("momentum", 6, 5)}
"""An operator's number that means nothing unless it trains: its name, its place, and that of `training`."""


def unused_in_inference(node: fx.Node, path: Path) -> str | None:
    """The name of a number that nothing reads, whatever it is; None for any other."""
    name, place, training = _INFERENCE.get(op_name(node), ("", 0, 0))
    is_training = argument(node, training, "training")
    is_it = bool(name) and path in {("args", place), ("kwargs", name)}
    return name if is_it and is_training is False else None


def names(region: Region, taken: list[Parameter]) -> dict[fx.Node, str]:
    """Readable Python names of inputs and nodes."""
    used = {p.name for p in taken} | {"torch", "operator"}
    result: dict[fx.Node, str] = {}
    for node in region.inputs:
        result[node] = _unique(_input_name(region, node), used)
    for node in region.nodes:
        result[node] = _unique(op_name(node).strip("_"), used)
    return result


_ROLES = {
    "layer_norm": {2: "weight", 3: "bias"},
    "batch_norm": {1: "running_mean", 2: "running_var", 3: "weight", 4: "bias"},
    "group_norm": {2: "weight", 3: "bias"},
    "embedding": {0: "indices", 1: "table"},
    "masked_fill": {1: "mask"},
    "prelu": {1: "slope"},
    **{name: {1: "weight", 2: "bias"} for name in ALL_CONVOLUTIONS},
}


def _input_name(region: Region, node: fx.Node) -> str:
    """A name that says what the input is for."""
    for user in region.nodes:
        roles = _ROLES.get(op_name(user), {})
        for position, value in enumerate(user.args):
            if value is node and position in roles:
                return roles[position]
        for key, value in user.kwargs.items():
            if value is node and key in {"weight", "bias", "running_mean", "running_var"}:
                return str(key)
    return "x"


def _unique(stem: str, used: set[str]) -> str:
    stem = re.sub(r"\W", "_", stem) or "v"
    if keyword.iskeyword(stem) or hasattr(builtins, stem):
        stem += "_v"
    name, k = stem, 2
    while name in used:
        name, k = f"{stem}{'_' if stem[-1].isdigit() else ''}{k}", k + 1
    used.add(name)
    return name


def write_pattern(region: Region, taken: list[Parameter], named: dict[fx.Node, str]) -> list[str]:
    """The lines of `def pattern`."""
    arguments_ = [*(named[i] for i in region.inputs), *(p.name for p in taken)]
    outputs = ", ".join(named[o] for o in region.outputs)
    last = f"    return {outputs if len(region.outputs) == 1 else f'({outputs})'}"
    return [f"def pattern({', '.join(arguments_)}):", *operator_lines(region, taken, named), last]


def operator_lines(
    region: Region, taken: list[Parameter], named: dict[fx.Node, str], skipped: Sequence[fx.Node] = ()
) -> list[str]:
    """The region's operators, but for some, one a line."""
    where = {(p.node, p.path): p.name for p in taken}

    def text(position: int, path: Path, value: Any) -> str:
        if isinstance(value, fx.Node):
            return named[value]
        return where.get((position, path)) or literal(value)

    nodes = [(position, node) for position, node in enumerate(region.nodes) if node not in skipped]
    return [f"    {named[node]} = {call(node, partial(text, position))}" for position, node in nodes]


def call(node: fx.Node, leaf: Callable[[Path, Any], str]) -> str:
    """One operator as an expression."""
    args = [_argument(a, leaf, ("args", k)) for k, a in enumerate(node.args)]
    if node.target is operator.getitem:
        return f"{args[0]}[{_argument(node.args[1], leaf, ('args', 1), is_index=True)}]"
    if node.op == "call_function" and node.target in _INFIX:
        return f"{args[0]} {_INFIX[node.target]} {args[1]}"
    if node.target is operator.neg:
        return f"-{args[0]}"
    keywords = [f"{k}={_argument(v, leaf, ('kwargs', k))}" for k, v in node.kwargs.items()]
    if node.op == "call_method":
        return f"{args[0]}.{node.target}({', '.join([*args[1:], *keywords])})"
    return f"{qualified(node)}({', '.join([*args, *keywords])})"


def _argument(value: Any, leaf: Callable[[Path, Any], str], path: Path, is_index: bool = False) -> str:
    """An argument as an expression, or as the text between the brackets of a getitem."""
    if isinstance(value, tuple | list):
        bare = is_index and isinstance(value, tuple) and bool(value)
        places = ((v, (*path, k)) for k, v in enumerate(value))
        items = [_argument(v, leaf, at, is_index=bare and isinstance(v, slice)) for v, at in places]
        text = ", ".join(items) + ("," if len(items) == 1 and isinstance(value, tuple) else "")
        return text if bare else f"[{text}]" if isinstance(value, list) else f"({text})"
    if isinstance(value, slice):
        start, stop, step = ((getattr(value, k), (*path, k)) for k in ("start", "stop", "step"))
        texts = ["" if is_index and v is None else leaf(at, v) for v, at in (start, stop, step)]
        return ":".join(texts if texts[2] else texts[:2]) if is_index else f"slice({', '.join(texts)})"
    return leaf(path, value)


def literal(value: Any) -> str:
    """A literal as Python text."""
    if isinstance(value, torch.device):
        return f'torch.device("{value.type}")'
    if value is Ellipsis:
        return "..."
    if isinstance(value, float) and (math.isinf(value) or math.isnan(value)):
        return f'float("{value}")'
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)
