"""What a pass's pattern is given in the task's own subgraphs: shapes, dtypes and what the values are like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.errors import UsageError
from passagent.evaluator.matching.rewrite import PlannedPass, apply_passes
from passagent.plan.messages import Subgraph
from passagent.plan.model import Recording
from passagent.plan.recorded_pattern import pattern_graph
from passagent.tasks.graphio import load_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.reader import Subgraph as TaskSubgraph


@dataclass(frozen=True)
class Like:
    """A tensor like one that eager computed."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""
    dtype: str
    mean: float = 0.0
    deviation: float = 0.0
    least: float = 0.0
    most: float = 0.0
    """Of the finite values."""
    either: tuple[float, ...] = ()
    """Its values, if there are no more than two: a mask."""


@dataclass(frozen=True)
class Sample:
    """What one match binds to the parameters of a pattern: tensors (`Like`), lists of them, constants."""

    name: str
    """Of the pass."""
    subgraph: str
    given: dict[str, Any]


def samples(
    recording: Recording, subgraphs: Sequence[Subgraph], sources: Sequence[TaskSubgraph], device: str
) -> list[Sample]:
    """For every pass, each combination of shapes and dtypes that it is given, once, and where that was.

    `subgraphs` and `sources` are the same ones; eager runs on `device`. Raises UsageError where it cannot.
    """
    passes = [PlannedPass(one.name, one.file, pattern_graph(one.pattern)) for one in recording.passes]
    found: dict[str, Sample] = {}
    for subgraph, source in zip(subgraphs, sources, strict=True):
        bound = _bound(subgraph, passes)
        wanted = {name for _, bindings in bound for value in bindings.values() for name in _names(value)}
        watching = _Watching(load_graph(subgraph.nodes), wanted)
        inputs = make_inputs(source, device, 0)
        try:
            watching.run(*(inputs[place] for place in subgraph.order))
        except (RuntimeError, NotImplementedError) as error:
            why = str(error).splitlines()[0][:200]
            raise UsageError(f"{subgraph.name}: eager does not run on {device} here: {why}") from error
        for pass_name, bindings in bound:
            given = {name: _told(value, watching.seen) for name, value in bindings.items()}
            found.setdefault(repr((pass_name, _shapes(given))), Sample(pass_name, subgraph.name, given))
    order = [one.name for one in passes]
    return sorted(found.values(), key=lambda sample: order.index(sample.name))


@dataclass(frozen=True)
class _Of:
    """The value of a node of the captured graph."""

    node: str


def _bound(subgraph: Subgraph, passes: Sequence[PlannedPass]) -> list[tuple[str, dict[str, Any]]]:
    """For every match its pass, and what the parameters of the pattern are bound to, nodes as `_Of`."""
    graph_module = load_graph(subgraph.nodes)
    for node in graph_module.graph.nodes:
        node.meta["example_value"] = _Of(node.name)  # what replaces a node is given its
    found: list[tuple[str, dict[str, Any]]] = []
    for one in passes:
        parameters = [str(node.target) for node in one.pattern_graph.find_nodes(op="placeholder")]

        def kept(bindings: dict[str, Any], name: str = one.name, order: list[str] = parameters) -> Any:
            found.append((name, {parameter: _nodes_as_names(bindings[parameter]) for parameter in order}))
            return _stands_for_a_call, tuple(bindings.values())

        apply_passes(graph_module, [one], replacement=kept)
    return found


def _stands_for_a_call(*_: Any) -> None:
    raise AssertionError("a rewritten graph is not run here")


def _nodes_as_names(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return value.meta["example_value"]
    return [_nodes_as_names(item) for item in value] if isinstance(value, list | tuple) else value


def _names(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    return [value.node] if isinstance(value, _Of) else []


class _Watching(fx.Interpreter):
    """Runs a graph and notes what the values of some nodes are like when they are made."""

    def __init__(self, graph_module: fx.GraphModule, wanted: set[str]) -> None:
        super().__init__(graph_module)
        self.wanted = wanted
        self.seen: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        if n.name in self.wanted:
            self.seen[n.name] = like(value)
        return value


def like(value: Any) -> Any:
    """A tensor as `Like`, also inside lists and tuples; anything else as it is."""
    if isinstance(value, list | tuple):
        return [like(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    shape, stride = tuple(value.shape), tuple(value.stride())
    flat = value.detach().reshape(-1)
    if value.is_complex() or not flat.numel() or flat.isnan().any():
        return Like(shape, stride, dtype, deviation=1.0)
    if value.dtype == torch.bool:
        return Like(shape, stride, dtype)
    least, most = flat.aminmax()
    low, high = least.item(), most.item()
    if low == high and flat.numel() > 1 and value.is_floating_point() and math.isfinite(low):
        # a weight of ones or a bias of zeros: a pass that leaves it out is to be found
        return Like(shape, stride, dtype, low, 0.2, low - 0.5, low + 0.5)
    if bool(((flat == least) | (flat == most)).all()):
        return Like(shape, stride, dtype, either=tuple(dict.fromkeys((low, high))))
    finite = flat[flat.isfinite()].float()
    mean, spread = float(finite.mean()), float(finite.std(correction=0))
    if value.is_floating_point():
        low, high = _short(float(finite.min())), _short(float(finite.max()))
    return Like(shape, stride, dtype, _short(mean), _short(spread), low, high)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _told(value: Any, seen: dict[str, Any]) -> Any:
    """What a parameter is bound to, nodes by what eager made there."""
    if isinstance(value, list):
        return [_told(item, seen) for item in value]
    return seen[value.node] if isinstance(value, _Of) else value


def _shapes(given: Any) -> Any:
    if isinstance(given, Like):
        return given.shape, given.stride, given.dtype
    if isinstance(given, dict):
        return {name: _shapes(value) for name, value in given.items()}
    return [_shapes(item) for item in given] if isinstance(given, list) else given
