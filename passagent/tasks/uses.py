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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from passagent.tasks.graphio import operator_name
from passagent.tasks.inputs import draw_one, is_mask, recorded_range
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph

_MIXING = {"cat", "stack", "index", "embedding", "gather", "index_select"}
"""Operators beside the elementwise ones and attention in which an integer may meet other values."""
_COPYING = ("aten::_to_copy", "aten::_unsafe_view", "aten::clone", "aten::repeat")
_Given = dict[int, torch.Tensor]
_Shapes = list[torch.Size]
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
        limits = _follow(subgraph, graph_module, order, {}, []).limits if are_any else {}
        for position, (_, limit) in limits.items():
            for value in (limit + 1, -limit - 2):
                values = _followed_value(subgraph.inputs[position]).clone()
                element = secrets.randbelow(values.numel())
                with suppress(RuntimeError):  # such a byte
                    values.view(-1)[element] = value
                try:
                    _follow(subgraph, graph_module, order, {position: values}, [])
                except _Broken:
                    wrong.append((position, element, value))
    return wrong


def _variances(graph: fx.Graph, order: Sequence[int]) -> set[int]:
    """Inputs that a batch norm takes for its running variance."""
    places = dict(zip(graph.find_nodes(op="placeholder"), order, strict=True))
    positions = set()
    for node in graph.nodes:
        if operator_name(node.target) == "batch_norm":
            value = node.args[2] if len(node.args) > 2 else node.kwargs.get("running_var")
            while isinstance(value, fx.Node) and len(value.all_input_nodes) == 1:
                [value] = value.all_input_nodes
            if value in places:
                positions.add(places[value])
    return positions


def _ranges(
    subgraph: Subgraph, graph_module: fx.GraphModule, order: Sequence[int], integers: list[int]
) -> tuple[dict[int, TensorMeta], dict[int, str]]:
    """New metadata for those of `integers` that may go further; why others may not."""
    try:
        following = _follow(subgraph, graph_module, order, {}, [])
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
                if meta.role == "index" and (meta.min_val or 0) < 0:
                    wider_metas[i] = replace(meta, min_val=0)
                elif meta.role == "any":
                    wider_metas[i] = replace(meta, role="")
                elif i in following.limits and meta.role != "rising" and meta.shape and meta.shape[-1] > 1:
                    wider_metas[i] = replace(meta, role="rising")
                else:
                    fixed[i] = "other values lead out of a table, or to other shapes"
    return wider_metas, fixed


def _proposed(meta: TensorMeta, limits: tuple[int, int] | None) -> TensorMeta | None:
    """Metadata with a wider range: all of the table that an input indexes, or more than one number.

    Of what may be any number of its dtype special values are (`any`).
    """
    low, high = recorded_range(meta)
    if limits is not None and low >= limits[0] and limits[1] > 0:
        return replace(meta, data=None, min_val=limits[0], max_val=limits[1], role="index")
    if limits is not None or meta.dtype == "bool":
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


def _follow(
    subgraph: Subgraph, graph_module: fx.GraphModule, order: Sequence[int], chosen: _Given, shapes: _Shapes
) -> _Following:
    """Run the graph with inputs as `chosen`, the others as recorded. Raises _Broken."""
    values = [chosen[i] if i in chosen else _followed_value(meta) for i, meta in enumerate(subgraph.inputs)]
    following = _Following({i: values[i] for i in order}, shapes)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"), following:
        _OnCpu(graph_module, following).run(*[values[i] for i in order])
    return following


class _OnCpu(fx.Interpreter):
    """Runs a graph with the CPU in place of other devices, and without its result. Raises _Broken."""

    def __init__(self, graph_module: fx.GraphModule, following: _Following) -> None:
        super().__init__(graph_module)
        self._following = following

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        if not n.op.startswith("call"):
            return super().run_node(n) if n.op == "placeholder" else None
        args, kwargs = fx.node.map_aggregate(self.fetch_args_kwargs_from_env(n), _here)
        try:
            return args[0] if n.target in ("cuda", "cpu") else getattr(self, n.op)(n.target, args, kwargs)
        except _Broken:
            raise
        except Exception as error:
            raise _Broken(self._following.sources_of(_tensors((args, kwargs)))) from error


class _Following(TorchDispatchMode):
    """Runs operators with the values of integers and the shapes of all else, on the meta device.

    Inputs are known by the storages in which their values lie. Raises _Broken, also where a value that comes
    of an input has not the shape that `shapes` has for it.
    """

    def __init__(self, inputs: dict[int, Any], shapes: _Shapes) -> None:
        super().__init__()
        self._expected = iter(shapes)
        self.shapes: _Shapes = []
        """Shapes of the values that come of inputs, in the order in which they are computed."""
        self.limits: dict[int, tuple[int, int]] = {}
        """The smallest and the largest index of each input that indexes something itself."""
        self.fixed: dict[int, str] = {}
        """Inputs that must not vary, and why."""
        followed = {i: value for i, value in inputs.items() if isinstance(value, torch.Tensor)}
        self._direct = {_storage(value): i for i, value in followed.items() if not value.is_meta}
        """By the storages that hold an input's own values: its position."""
        self._sources = {storage: frozenset([i]) for storage, i in self._direct.items()}

    def sources_of(self, values: Sequence[torch.Tensor]) -> frozenset[int]:
        """The inputs that the values come of."""
        return frozenset[int]().union(*(self._sources.get(_storage(value), ()) for value in values))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = _tensors((args, kwargs))
        sources, name = self.sources_of(operands), func._schema.name.partition("::")[2]
        self._check_indices(func, args)
        if any(value.is_meta for value in operands):
            is_elementwise = torch.Tag.pointwise in func.tags or _is_copy(func)
            is_attention = "scaled_dot_product" in name or name == "_fused_sdp_choice"
            if sources and not (is_elementwise or is_attention or name in _MIXING):
                self._fix(sources, f"{name} may depend on its value")
            args_there, kwargs_there = fx.node.map_aggregate((args, kwargs or {}), _as_meta)
            value = func(*args_there, **kwargs_there)
            if func._schema.is_mutable and not args[0].is_meta:
                self._direct.pop(_storage(args[0]), None)
                return args[0]
            return value
        try:
            value = func(*args, **(kwargs or {}))
        except Exception as error:
            raise _Broken(sources) from error
        if torch.Tag.data_dependent_output in func.tags:
            self._fix(sources, f"{name} makes a Python number of it")
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            self._direct.pop(_storage(args[0]), None)
        results = _tensors(value) if sources else []
        for result in results:
            if result.numel() > _MOST:
                self._fix(sources, "too large a value comes of it")
                return fx.node.map_aggregate(value, _as_meta)
            self.shapes.append(result.shape)
            if next(self._expected, result.shape) != result.shape:
                raise _Broken(sources)
            storage = _storage(result)
            self._sources[storage] = self._sources.get(storage, frozenset()) | sources
            if _is_copy(func) and (position := self._direct.get(_storage(operands[0]))) is not None:
                self._direct[storage] = position
        return value

    def _check_indices(self, func: Any, args: Any) -> None:
        """Raises _Broken where an index is out of range."""
        names = [argument.name for argument in func._schema.arguments]
        if names[:2] == ["weight", "indices"] and len(args) > 1:
            self._check_index(args[1], 0, args[0].shape[0])
        elif names[:3] == ["self", "dim", "index"] and isinstance(args[2], torch.Tensor) and args[0].dim():
            self._check_index(args[2], 0, args[0].shape[args[1]])
        elif names[:2] == ["self", "indices"]:
            dim = 0
            for index in args[1]:
                if index is not None and index.dtype == torch.bool:
                    self._fix(self.sources_of([index]), "it selects")
                elif index is not None:
                    self._check_index(index, -args[0].shape[dim], args[0].shape[dim])
                dim += index.dim() if index is not None and index.dtype == torch.bool else 1

    def _check_index(self, values: torch.Tensor, low: int, size: int) -> None:
        if values.is_meta or values.numel() == 0:
            return
        if int(values.min()) < low or int(values.max()) >= size:
            raise _Broken(self.sources_of([values]))
        if (position := self._direct.get(_storage(values))) is not None:
            lowest, largest = self.limits.get(position, (low, size - 1))
            self.limits[position] = max(lowest, low), min(largest, size - 1)

    def _fix(self, sources: frozenset[int], why: str) -> None:
        for position in sources:
            self.fixed.setdefault(position, why)


def _storage(value: torch.Tensor) -> StorageWeakRef:
    """Return a key of a tensor's memory that no other gets, also when it is freed."""
    return StorageWeakRef(value.untyped_storage())


def _is_copy(overload: torch._ops.OpOverload) -> bool:
    """Return whether an overload's result has no other values than its operand."""
    return overload.is_view or overload._schema.name in _COPYING


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
