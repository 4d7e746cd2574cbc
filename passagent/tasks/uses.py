"""The uses of a graph's inputs, and so how far their values may go beyond what was recorded.

Recorded statistics are no promise: token types that were all 0 index a table of two rows. The graph is
followed with the values of its integers, on the CPU, and with the shapes of all else. What indexes a table
may be any index of it, a mask may be 0 or 1, and what decides a shape stays as it is.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from passagent.tasks.inputs import draw_one, is_mask, recorded_range
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph

_MIXING = {
    "cat", "stack", "scaled_dot_product_attention", "getitem", "embedding", "gather", "index_select",
}  # fmt: skip
"""Operators beside the elementwise ones in which an integer may meet other values; indices are checked."""
_COPYING = {"aten::_to_copy", "aten::_unsafe_view", "aten::clone", "aten::repeat"}
_Given = dict[int, torch.Tensor]
_Shapes = dict[fx.Node, tuple[int, ...]]
_CORNERS = 8
"""Draws of nothing but the ends of the ranges: there an index that is computed is farthest out."""
_MOST = 1 << 24
"""Elements of a value that is followed."""


@dataclass(frozen=True)
class Wider:
    """A subgraph whose inputs' metadata say what they may be, and what was left as recorded."""

    subgraph: Subgraph
    kept: list[str]
    """Inputs whose integers were recorded all alike and stay so, and why."""


def wider(subgraph: Subgraph, graph_module: fx.GraphModule, order: Sequence[int]) -> Wider:
    """Let inputs take what the graph allows. `order`: for each of its placeholders its input's position."""
    metas, fixed = list(subgraph.inputs), dict[int, str]()
    for position in _variances(graph_module.graph, order):
        metas[position] = replace(metas[position], role="positive")
    integers = [i for i, meta in enumerate(metas) if (meta.is_integer or meta.dtype == "bool") and meta.numel]
    if integers:
        proposed, fixed = _ranges(subgraph, graph_module, order, integers)
        metas = [proposed.get(i, meta) for i, meta in enumerate(metas)]
        for i in [i for i in integers if metas[i].dtype == "bool" and i in fixed]:
            metas[i] = replace(metas[i], role="recorded")
    constant = [i for i in sorted(fixed) if len({*recorded_range(metas[i])}) == 1]
    reasons = [f"{metas[i].name}: {fixed[i]}" for i in constant]
    return Wider(replace(subgraph, inputs=tuple(metas)), reasons)


_NARROWED = 8
"""Inputs that are narrowed one after the other; then all are."""


def narrower(values: Wider) -> Wider:
    """One more float stays as recorded: those first that have limits. All after some; the same if all do."""
    metas = list(values.subgraph.inputs)
    pending = [i for i, meta in enumerate(metas) if meta.is_floating and not (meta.role or meta.is_variance)]
    pending.sort(key=lambda i: (metas[i].data, metas[i].min_val, metas[i].max_val) == (None, None, None))
    done = sum(meta.is_floating and meta.role == "recorded" for meta in metas)
    chosen = pending[:1] if done < _NARROWED else pending
    for i in chosen:
        metas[i] = replace(metas[i], role="recorded")
    reasons = [f"{metas[i].name}: other values leave results that are not finite" for i in chosen]
    return Wider(replace(values.subgraph, inputs=tuple(metas)), values.kept + reasons)


def as_recorded(subgraph: Subgraph) -> Subgraph:
    """The subgraph with every input as recorded."""
    inputs = tuple(
        meta if meta.is_python_scalar or meta.role == "positive" else replace(meta, role="recorded")
        for meta in subgraph.inputs
    )
    return replace(subgraph, inputs=inputs)


def is_recorded(subgraph: Subgraph) -> bool:
    """No input goes beyond what was recorded."""
    return subgraph == as_recorded(subgraph)


def wrong_indices(
    subgraph: Subgraph, graph_module: fx.GraphModule, order: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Where eager raises for an index: positions of inputs, an element of each, values out of its range."""
    wrong, are_any = list[tuple[int, int, int]](), any(meta.is_integer for meta in subgraph.inputs)
    with suppress(_Broken):
        limits = _follow(subgraph, graph_module, order, {}, {}).limits if are_any else {}
        for position, limit in limits.items():
            for value in (limit + 1, -limit - 2):
                values = _followed_value(subgraph.inputs[position]).clone()
                element = secrets.randbelow(values.numel())
                with suppress(RuntimeError):  # such a byte
                    values.view(-1)[element] = value
                try:
                    _follow(subgraph, graph_module, order, {position: values}, {})
                except _Broken:
                    wrong.append((position, element, value))
    return wrong


def _variances(graph: fx.Graph, order: Sequence[int]) -> set[int]:
    """Inputs that a batch norm takes for its running variance."""
    places = dict(zip(graph.find_nodes(op="placeholder"), order, strict=True))
    positions = set()
    for node in graph.nodes:
        if _called(node) == "batch_norm":
            value = node.args[2] if len(node.args) > 2 else node.kwargs.get("running_var")
            while isinstance(value, fx.Node) and len(value.all_input_nodes) == 1:
                [value] = value.all_input_nodes
            if value in places:
                positions.add(places[value])
    return positions


def _follow(
    subgraph: Subgraph, graph_module: fx.GraphModule, order: Sequence[int], chosen: _Given, shapes: _Shapes
) -> _Following:
    """The graph followed with inputs as `given`, the others as recorded. Raises _Broken."""
    values = [chosen[i] if i in chosen else _followed_value(meta) for i, meta in enumerate(subgraph.inputs)]
    following = _Following(graph_module, order, shapes)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        following.run(*[values[i] for i in order])
    return following


def _ranges(
    subgraph: Subgraph, graph_module: fx.GraphModule, order: Sequence[int], integers: list[int]
) -> tuple[dict[int, TensorMeta], dict[int, str]]:
    """New metadata for those of `integers` that may go further; why others may not."""
    try:
        following = _follow(subgraph, graph_module, order, {}, {})
    except _Broken:
        return {}, dict.fromkeys(integers, "the graph cannot be followed")
    fixed = {i: why for i, why in following.fixed.items() if i in integers}
    proposed = {i: _proposed(subgraph.inputs[i], following.limits.get(i)) for i in integers if i not in fixed}
    wider_metas = {i: meta for i, meta in proposed.items() if meta is not None}
    while wider_metas:
        try:
            for number in range(_CORNERS):
                corners = {i: _corner(meta, number) for i, meta in wider_metas.items()}
                _follow(subgraph, graph_module, order, corners, following.shapes)
            break
        except _Broken as broken:
            for i in (broken.sources & wider_metas.keys()) or list(wider_metas):
                meta = wider_metas.pop(i)
                if meta.role == "any":
                    wider_metas[i] = replace(meta, role="")
                elif i in following.limits and meta.role != "rising" and meta.shape and meta.shape[-1] > 1:
                    wider_metas[i] = replace(meta, role="rising")
                else:
                    fixed[i] = "other values lead out of a table, or to other shapes"
    return wider_metas, fixed


def _proposed(meta: TensorMeta, limit: int | None) -> TensorMeta | None:
    """Metadata with a wider range: all of the table that an input indexes, or more than one number.

    Of what may be any number of its dtype special values are (`any`).
    """
    low, high = recorded_range(meta)
    if limit is not None and low >= 0 and limit > 0:
        return replace(meta, data=None, min_val=0, max_val=limit, role="index")
    if limit is not None or meta.dtype == "bool":
        return None
    if low != high:
        return replace(meta, role="mask" if is_mask(meta) else "any")
    has_levels = low in (0, 1) and bool(meta.shape) and meta.shape[-1] > 1
    low, high = min(low, 0), max(high, 1)
    return replace(meta, data=None, min_val=low, max_val=high, role="mask" if has_levels else "any")


def _corner(meta: TensorMeta, number: int) -> torch.Tensor:
    low, high = range_of(meta)
    chance = torch.rand(meta.shape, generator=torch.Generator().manual_seed(number))
    is_high = chance < (0.0, 1.1, 0.5)[min(number, 2)]
    drawn = torch.where(is_high, high, low).to(getattr(torch, meta.dtype))
    return drawn.sort(-1).values if meta.role == "rising" else drawn


def range_of(meta: TensorMeta) -> tuple[int, int]:
    """The smallest and the largest integer that an input may be, by its role."""
    if meta.role != "any":
        return recorded_range(meta)
    limits = torch.iinfo(getattr(torch, meta.dtype))
    return limits.min, min(limits.max, torch.iinfo(torch.int64).max)


def _followed_value(meta: TensorMeta) -> Any:
    """An input as it is followed: numbers and integers as drawn, else only what it is like."""
    if meta.is_python_scalar or meta.is_integer or meta.dtype == "bool":
        return draw_one(meta, 0, 1)
    return torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device="meta")


class _Broken(Exception):
    """An index is out of range, or the graph does not run on these values."""

    def __init__(self, sources: frozenset[int]) -> None:
        super().__init__()
        self.sources = sources
        """The inputs that it comes of; none if that is not known."""


class _Following(fx.Interpreter):
    """Runs a graph with the values of integers and the shapes of all else.

    Raises _Broken, also where a value that is followed has not the shape that `shapes` says.
    """

    def __init__(self, graph_module: fx.GraphModule, order: Sequence[int], shapes: _Shapes) -> None:
        super().__init__(graph_module)
        self._expected = shapes
        self._places = dict(zip(graph_module.graph.find_nodes(op="placeholder"), order, strict=True))
        self.sources: dict[fx.Node, frozenset[int]] = {}
        """For each value that is followed the inputs that it comes of."""
        self.shapes: _Shapes = {}
        self.limits: dict[int, int] = {}
        """The largest index of each input that indexes something itself."""
        self.fixed: dict[int, str] = {}
        """Inputs that must not vary, and why."""
        self._direct: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        if n.op == "output":
            return None
        if n.op == "placeholder":
            value = super().run_node(n)
            if isinstance(value, torch.Tensor) and not value.is_meta:
                self.sources[n], self._direct[n] = frozenset([self._places[n]]), self._places[n]
            return value
        name = _called(n)
        args, kwargs = fx.node.map_aggregate(self.fetch_args_kwargs_from_env(n), _here)
        sources = frozenset[int]().union(*(self.sources.get(operand, ()) for operand in n.all_input_nodes))
        self._check_indices(n, name, args, kwargs)
        is_mixed = any(value.is_meta for value in _tensors((args, kwargs)))
        if is_mixed:
            args, kwargs = fx.node.map_aggregate((args, kwargs), _as_meta)
        try:
            with _Overloads() as run:
                value = args[0] if name in ("cuda", "cpu") else getattr(self, n.op)(n.target, args, kwargs)
        except Exception as error:
            raise _Broken(frozenset() if is_mixed else sources) from error
        if is_mixed:
            is_elementwise = all(torch.Tag.pointwise in o.tags or _is_copy(o) for o in run.overloads)
            if sources and name not in _MIXING and not is_elementwise:
                self._fix(sources, f"{name} may depend on its value")
            return value
        if isinstance(value, torch.Tensor) and value.numel() > _MOST:
            self._fix(sources, "too large a value comes of it")
            return value.to("meta")
        if sources:
            self._note(n, value, sources, run)
        return value

    def _note(self, n: fx.Node, value: Any, sources: frozenset[int], run: _Overloads) -> None:
        """Remember what a value comes of."""
        if any(torch.Tag.data_dependent_output in overload.tags for overload in run.overloads):
            self._fix(sources, f"{_called(n)} makes a Python number of it")
        self.sources[n] = sources
        if isinstance(value, torch.Tensor):
            self.shapes[n] = tuple(value.shape)
            if self._expected.get(n, value.shape) != value.shape:
                raise _Broken(sources)
        first = n.args[0] if n.args else None
        if isinstance(first, fx.Node):
            if any(overload._schema.is_mutable for overload in run.overloads):
                self.sources[first] = self.sources.get(first, frozenset()) | sources
                self._direct.pop(first, None)
            elif first in self._direct and len(sources) == 1 and all(map(_is_copy, run.overloads)):
                self._direct[n] = self._direct[first]

    def _check_indices(self, n: fx.Node, name: str, args: Any, kwargs: Any) -> None:
        """Raises _Broken where an index is out of range."""
        names = ["input", "weight"] if name == "embedding" else ["input", "dim", "index"]
        if name == "embedding" or _takes_index(name):
            by_name, named = dict(zip(names, n.args, strict=False)), dict(zip(names, args, strict=False))
            by_name, named = {**by_name, **n.kwargs}, {**named, **kwargs}
            index, table = ("input", "weight") if name == "embedding" else ("index", "input")
            values, indexed = named.get(index), named.get(table)
            if isinstance(values, torch.Tensor) and isinstance(indexed, torch.Tensor) and indexed.dim():
                self._check_index(by_name[index], values, 0, indexed.shape[named.get("dim", 0)])
        elif name == "one_hot" and args and (count := [*args[1:], kwargs.get("num_classes", -1)][0]) > 0:
            self._check_index(n.args[0], args[0], 0, count)
        elif name in ("getitem", "setitem") and isinstance(args[0], torch.Tensor):
            nodes, items = (x if isinstance(x, tuple) else (x,) for x in (n.args[1], args[1]))
            taken = sum(_dims(item) for item in items)
            dim = 0
            for node, item in zip(nodes, items, strict=True):
                if isinstance(item, torch.Tensor) and item.dtype == torch.bool:
                    self._fix(self.sources.get(node, frozenset()), "it selects")
                elif isinstance(item, torch.Tensor):
                    self._check_index(node, item, -args[0].shape[dim], args[0].shape[dim])
                dim += args[0].dim() - taken if item is Ellipsis else _dims(item)

    def _check_index(self, node: Any, values: torch.Tensor, low: int, size: int) -> None:
        if values.is_meta or values.numel() == 0:
            return
        if int(values.min()) < low or int(values.max()) >= size:
            raise _Broken(self.sources.get(node, frozenset()))
        if (position := self._direct.get(node)) is not None:
            self.limits[position] = min(self.limits.get(position, size - 1), size - 1)

    def _fix(self, sources: frozenset[int], why: str) -> None:
        for position in sources:
            self.fixed.setdefault(position, why)


class _Overloads(TorchDispatchMode):
    """Notes the overloads that run: what they do with values is in their schemas and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.overloads: list[torch._ops.OpOverload] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.overloads.append(func)
        return func(*args, **(kwargs or {}))


def _is_copy(overload: torch._ops.OpOverload) -> bool:
    """Return whether an overload's result has no other values than its operand."""
    return overload.is_view or overload._schema.name in _COPYING


def _takes_index(name: str) -> bool:
    """Return whether an operator takes a tensor, a dimension and indices in it, as gather does."""
    packet = getattr(torch.ops.aten, name, None)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()] if packet else []
    return any([part.name for part in s.arguments][:3] == ["self", "dim", "index"] for s in schemas)


def _called(node: fx.Node) -> str:
    """The operator's name, of one in place without what says so."""
    return (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).rstrip("_")


def _dims(item: Any) -> int:
    """How many dimensions an item of an index takes."""
    if isinstance(item, torch.Tensor):
        return item.dim() if item.dtype == torch.bool else 1
    return 0 if item is None or item is Ellipsis else 1


def _tensors(values: Any) -> list[torch.Tensor]:
    leaves = list[Any]()
    fx.node.map_aggregate(values, leaves.append)
    return [value for value in leaves if isinstance(value, torch.Tensor)]


def _here(value: Any) -> Any:
    """On the CPU what the graph has elsewhere."""
    is_elsewhere = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
    return torch.device("cpu") if is_elsewhere else value


def _as_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return torch.device("meta") if isinstance(value, torch.device) else value
