"""Lower operator nodes of a captured graph, one after the other, into tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from passagent.expert.graph import HEAVY, SLOW_ON, arguments, example, mutates, op_name, replaced
from passagent.expert.lower import indexing, movement, pointwise, reductions, windows
from passagent.expert.lower.call import OPS, Call, check_shape
from passagent.expert.lower.expressions import FLOATING, HALF, Expr, Trace, Value, dtype_name, parts
from passagent.expert.lower.symbolic_sizes import Scalar, Unsupported

_REGISTERED = (indexing, movement, pointwise, reductions, windows)
"""The modules whose lowerings OPS holds."""

_DECIDING = {"bits", "floor", "ceil", "rint", "eq", "ne", "lt", "le", "gt", "ge"}
_ROUNDING = {"floor", "ceil", "round", "trunc", "fix", "frac", "remainder", "fmod", "mod", "floordiv"}
_ROUNDING |= {"sign", "sgn"}
"""Operations on expressions, and operators, that choose or round by a value's last place."""

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Parameter:
    """A literal of the pattern that is a parameter: `name`, and where it stands."""

    name: str
    node: int
    """Position of the node in the region."""
    path: Path


@dataclass
class Region:
    """Operators to fuse: `nodes` in order, tensors read from outside, nodes used outside."""

    nodes: list[fx.Node]
    inputs: list[fx.Node]
    outputs: list[fx.Node]


@dataclass
class Lowered:
    trace: Trace
    outputs: list[Value]
    written: dict[int, tuple[Value, fx.Node]] = field(default_factory=dict)
    """The values that eager leaves in written inputs, by the inputs' numbers, and the last writer."""


@dataclass
class Types:
    """How dtypes are named in expressions: `half` is the one 16-bit type (or float32) that a call has."""

    generic: frozenset[torch.dtype] = field(default_factory=lambda: frozenset(HALF))

    def name(self, dtype: torch.dtype) -> str:
        return "half" if dtype in self.generic else dtype_name(dtype)


def lower_node(
    trace: Trace,
    node: fx.Node,
    env: dict[fx.Node, Any],
    types: Types,
    literal: Callable[[Path, Any], Any],
    override: Callable[..., Any] | None = None,
) -> Any:
    """The Value (or tuple of them) of an operator, by `override` if there is one. Raises Unsupported."""
    name = op_name(node)
    first = windows.comes_first(node, trace.target)
    heavy = name in HEAVY and not first and not override and not windows.is_written_out(node)
    if name in SLOW_ON[trace.target] or heavy:
        raise Unsupported(name, "is left to the vendor library")
    # `add` for the method `add_`: fusible_regions.py makes sure that the difference does not matter
    lowering = override or OPS.get(name) or OPS.get(name.removesuffix("_"))
    if lowering is None and not first:
        raise Unsupported(name, "has no lowering")

    def leaf(path: Path, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return env[value].refresh() if isinstance(env[value], Value) else env[value]
        return literal(path, value)

    args, kwargs = replaced(node, leaf)
    out = example(node)
    tensors = out if isinstance(out, tuple | list) else (out,)
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise Unsupported(name, "gives what is no tensor")
    call = Call(trace, name, types.name(tensors[0].dtype))
    try:
        if first or lowering is None:
            result = windows.with_bias(call, node, env[windows.bias_of(node)])
        else:
            result = lowering(call, *args, **kwargs)
    except Unsupported as error:
        raise Unsupported(name, error.reason) from error
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError) as error:
        raise Unsupported(name, f"these arguments are not lowered ({error})") from error
    check_shape(name, result, out)
    return result


def lower_region(
    region: Region,
    parameters: Iterable[Parameter],
    target: str,
    types: list[Types],
    orders: Sequence[tuple[int, ...]],
    overrides: dict[fx.Node, Callable[..., Any]] | None = None,
) -> Lowered:
    """The region's outputs as expressions of its inputs. Raises Unsupported.

    `types` names the dtypes: one entry for each input, then one for each node; `orders` says how the inputs
    lie in memory. `overrides` has functions that lower operators in place of those of the registry.
    """
    trace = Trace(target)
    env: dict[fx.Node, Any] = {}
    for node, naming, order in zip(region.inputs, types, orders, strict=False):
        env[node] = trace.input(example(node).shape, naming.name(example(node).dtype), order)
    where = {(p.node, p.path): p.name for p in parameters}
    root, last = dict[fx.Node, fx.Node](), dict[fx.Node, fx.Node]()
    lowered_nodes: dict[str, Any] = {}
    holds: dict[fx.Node, int] = {}  # which of what was made a node holds now
    for position, node in enumerate(region.nodes):

        def literal(path: Path, value: Any, position: int = position) -> Any:
            name = where.get((position, path))
            if name is None:
                return value
            return trace.size(value, name) if isinstance(value, int) else Scalar(value, name)

        naming, written = types[len(region.inputs) + position], mutates(node)

        def told(path: Path, value: Any, literal: Callable[[Path, Any], Any] = literal) -> Any:
            return holds.get(value, value) if isinstance(value, fx.Node) else literal(path, value)

        # What was computed of the same values in the same way is not computed again.
        arguments = replaced(node, told)
        key = repr((node.name if written is not None else op_name(node), naming, arguments))
        if key not in lowered_nodes:
            lowered_nodes[key] = lower_node(trace, node, env, naming, literal, (overrides or {}).get(node))
        env[node], holds[node] = lowered_nodes[key], list(lowered_nodes).index(key)
        if written is not None:
            env[written], holds[written] = env[node], holds[node]
            root[node] = root.get(written, written)
            last[root[node]] = node
    outputs = [env[node] for node in region.outputs]
    stored = {
        number: (env[last[node]], last[node])
        for number, node in enumerate(region.inputs)
        if node in last and node.op == "placeholder" and not orders[number]
    }
    return Lowered(trace, outputs, stored)


def has_any(region: Region, dtypes: set[torch.dtype]) -> bool:
    """Tell whether a tensor of the region has one of these dtypes."""
    return any(_dtype(node) in dtypes for node in [*region.inputs, *region.nodes])


def _dtype(node: fx.Node) -> torch.dtype | None:
    value = example(node)
    first = value[0] if isinstance(value, tuple | list) and value else value
    return first.dtype if isinstance(first, torch.Tensor) else None


def named_types(region: Region, half: Region | None) -> list[Types]:
    """How each input's and node's dtype is named; float32 regions follow a 16-bit one where there is one."""
    nodes = [*region.inputs, *region.nodes]
    kinds = {d for n in region.inputs if (d := _dtype(n)) in HALF}
    if kinds:
        # Of two 16-bit types among the inputs one is called by its name.
        return [Types(frozenset(sorted(kinds, key=str)[:1]))] * len(nodes)
    if has_any(region, HALF):
        return [Types(frozenset())] * len(nodes)
    single, none = Types(frozenset({torch.float32})), Types(frozenset())
    if half is not None and any(_dtype(h) in HALF for h in half.inputs):
        return [single if _dtype(h) in HALF else none for h in [*half.inputs, *half.nodes]]
    converts = any(
        op_name(n) in {"to", "float", "half", "type_as", "type", "double", "bfloat16"}
        or any(isinstance(v, torch.dtype) for _, v in arguments(n))
        for n in region.nodes
    )
    named = any(_dtype(n) is torch.float32 for n in region.inputs)  # else nothing says which type it is
    return [single if named and not converts else none] * len(nodes)


def deciding(exprs: Iterable[Expr]) -> set[Expr]:
    """Find the parts of comparisons, roundings and integers: their last place can change a whole result.

    There operations on CUDA are eager's own. Elsewhere they are cheap ones that keep t = -5.
    """
    deciding_parts: dict[Expr, None] = {}
    for e in parts(*exprs):
        to_integer = e.data == "cast" and e.dtype not in FLOATING and e.args[0].dtype in FLOATING
        if e.kind == "op" and (e.data in _DECIDING or to_integer):
            deciding_parts |= parts(*e.args)
    return set(deciding_parts)


def decides_later(region: Region) -> bool:
    """Tell whether something that the graph computes from a region's results rounds or chooses by them."""
    waiting, visited = [*region.outputs], set[fx.Node](region.outputs)
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output" or user in visited:
                continue
            visited.add(user)
            waiting.append(user)
            dtype = getattr(example(user), "dtype", None)
            if op_name(user) in _ROUNDING or (dtype is not None and not dtype.is_floating_point):
                return True
    return False
