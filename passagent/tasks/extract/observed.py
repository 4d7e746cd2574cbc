"""A captured graph, run and watched: the time of each operator, and values as later operators meet them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
    observed = Observed(graph_module)
    for _ in range(_WARM_UP):
        observed.run(*copied(inputs))
    observed.times.clear()
    if not any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs):
        for _ in range(_ROUNDS):
            observed.run(*copied(inputs))
        return {name: min(times) for name, times in observed.times.items()}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(_ROUNDS):
            observed.run(*copied(inputs))
        torch.cuda.synchronize()
    seconds: dict[str, float] = defaultdict(float)
    for event in profiled.events():
        if event.name.startswith(_MARK):
            seconds[event.name.removeprefix(_MARK)] += event.device_time_total / _ROUNDS / 1e6
    return dict(seconds)


class Observed(fx.Interpreter):
    """Runs a graph; times its operators, names them to the profiler, and keeps the values of some nodes."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        moments: Iterable[tuple[fx.Node, fx.Node]] = (),
        keep: Callable[[str, Any], Any] = lambda name, value: copied([value])[0],
    ) -> None:
        """`moments`: nodes, and before which others their values are kept in `values`: operators in place may
        have written into them since they were made. `keep`: of the name and the value, what is kept.
        """
        super().__init__(graph_module)
        self._moments, self._keep = defaultdict[str, set[str]](set), keep
        for node, later in moments:
            self._moments[later.name].add(node.name)
        self._made = dict[str, Any].fromkeys(set().union(*self._moments.values()))
        self.times: dict[str, list[float]] = defaultdict(list)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        with temporarily_clear_interpreter_stack():  # what leaves vmap is kept as outside of it
            self.values |= {name: self._keep(name, self._made[name]) for name in self._moments[n.name]}
        if not n.op.startswith("call"):
            value = super().run_node(n)
        else:
            with record_function(_MARK + n.name):
                begun = time.perf_counter()
                value = super().run_node(n)
                self.times[n.name].append(time.perf_counter() - begun)
        if n.name in self._made:
            self._made[n.name] = value
        return value
