"""What a pass's pattern is given in the task's own subgraphs: shapes, dtypes and what the values are like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from passagent.errors import UsageError
from passagent.evaluator.matching.rewrite import PlannedPass, apply_passes
from passagent.plan.messages import Subgraph
from passagent.plan.model import Recording
from passagent.plan.pattern import pattern_graph
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
        graph_module = load_graph(subgraph.nodes)
        inputs = make_inputs(source, device, 0)
        try:
            _Watching(graph_module).run(*(inputs[place] for place in subgraph.order))
        except (RuntimeError, NotImplementedError) as error:
            why = str(error).splitlines()[0][:200]
            raise UsageError(f"{subgraph.name}: eager does not run on {device} here: {why}") from error
        for one in passes:
            bound: list[dict[str, Any]] = []

            def kept(bindings: dict[str, Any], bound: list[dict[str, Any]] = bound) -> Any:
                bound.append(bindings)
                return _stands_for_a_call, tuple(bindings.values())

            apply_passes(graph_module, [one], replacement=kept)
            for bindings in bound:
                given = {name: _told(bindings[name]) for name in _parameters(one)}
                found.setdefault(repr((one.name, _shapes(given))), Sample(one.name, subgraph.name, given))
    return sorted(found.values(), key=lambda sample: [one.name for one in passes].index(sample.name))


def _parameters(one: PlannedPass) -> list[str]:
    return [str(node.target) for node in one.pattern_graph.find_nodes(op="placeholder")]


def _stands_for_a_call(*_: Any) -> None:
    raise AssertionError("a rewritten graph is not run here")


class _Watching(fx.Interpreter):
    """Runs a graph and notes on each node what its value is like when it is made."""

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        n.meta["example_value"] = like(value)
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
    if value.is_complex() or not flat.numel():
        return Like(shape, stride, dtype, deviation=1.0)
    several = flat.unique() if flat.numel() <= 1 << 22 else flat[: 1 << 16].unique()
    if several.numel() == 1 and flat.numel() > 1 and value.is_floating_point() and several.isfinite():
        # a weight of ones or a bias of zeros: a pass that leaves it out is to be found
        same = float(several)
        return Like(shape, stride, dtype, same, 0.2, same - 0.5, same + 0.5)
    if several.numel() <= 2 and value.dtype != torch.bool:
        return Like(shape, stride, dtype, either=tuple(several.tolist()))
    wide = flat.double()
    wide = wide[wide.isfinite()]
    if not wide.numel():
        return Like(shape, stride, dtype, deviation=1.0)
    spread = float(wide.std()) if wide.numel() > 1 else 0.0
    low, high = float(wide.min()), float(wide.max())
    if value.is_floating_point():
        low, high = _short(low), _short(high)
    return Like(shape, stride, dtype, _short(float(wide.mean())), _short(spread), low, high)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _told(value: Any) -> Any:
    """What a parameter is bound to: a node by what eager made there."""
    if isinstance(value, fx.Node):
        return value.meta.get("example_value")
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return value


def _shapes(given: Any) -> Any:
    if isinstance(given, Like):
        return given.shape, given.stride, given.dtype
    if isinstance(given, dict):
        return {name: _shapes(value) for name, value in given.items()}
    return [_shapes(item) for item in given] if isinstance(given, list) else given
