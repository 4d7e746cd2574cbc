"""How long each operator of a graph takes, and the values that its operators exchange."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.profiler import ProfilerActivity, profile, record_function

from passagent.tasks.extract.model_capture import copied

_MARK = "passagent operator "
_ROUNDS, _WARM_UP = 7, 2


def operator_times(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, float]:
    """Seconds of each operator in one call, by the names of nodes.

    On a GPU those of its kernels, by the profiler; on the CPU the fastest of a few calls.
    """
    is_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs)
    timed = _Profiled(graph_module) if is_cuda else _Timed(graph_module)
    for _ in range(_WARM_UP):
        timed.run(*copied(inputs))
    if isinstance(timed, _Timed):
        timed.times.clear()
        for _ in range(_ROUNDS):
            timed.run(*copied(inputs))
        return {name: min(times) for name, times in timed.times.items()}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(_ROUNDS):
            timed.run(*copied(inputs))
        torch.cuda.synchronize()
    seconds: dict[str, float] = defaultdict(float)
    for event in profiled.events():
        if event.name.startswith(_MARK):
            seconds[event.name.removeprefix(_MARK)] += event.device_time_total / _ROUNDS / 1e6
    return dict(seconds)


def values_of(graph_module: fx.GraphModule, inputs: Sequence[Any], nodes: Collection[str]) -> dict[str, Any]:
    """The values of some nodes in one run, as they were when they were made."""
    kept = _Keeping(graph_module, nodes)
    kept.run(*copied(inputs))
    return kept.values


class _Profiled(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        """The node's value; the profiler sees its name."""
        if not n.op.startswith("call"):
            return super().run_node(n)
        with record_function(_MARK + n.name):
            return super().run_node(n)


class _Timed(fx.Interpreter):
    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.times: dict[str, list[float]] = defaultdict(list)

    def run_node(self, n: fx.Node) -> Any:
        """The node's value; the time of its call is kept."""
        begun = time.perf_counter()
        value = super().run_node(n)
        if n.op.startswith("call"):
            self.times[n.name].append(time.perf_counter() - begun)
        return value


class _Keeping(fx.Interpreter):
    def __init__(self, graph_module: fx.GraphModule, nodes: Collection[str]) -> None:
        super().__init__(graph_module)
        self._nodes = nodes
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value; what later operators write does not change what is kept."""
        value = super().run_node(n)
        if n.name in self._nodes:
            with temporarily_clear_interpreter_stack():  # what leaves vmap is kept as outside of it
                self.values[n.name] = copied([value])[0]
        return value
