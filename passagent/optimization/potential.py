"""What a region could gain: its time in the model above the least that this device needs for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from passagent.extraction.region_tasks import RegionTask
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph, load_task

_TRIES = 15
_SIDE = 512
"""Of the square matrices whose product tells how fast the device multiplies."""


@dataclass(frozen=True)
class Potential:
    """What there is to gain in a region, of one call of the model."""

    seconds: float
    """Of its operators in eager, all its runs together."""
    light: float
    """The least: its inputs and outputs moved once, its matrix products at the device's own pace."""

    @property
    def gain(self) -> float:
        """Seconds above the least."""
        return max(0.0, self.seconds - self.light)


class SpeedOfLight:
    """Measures the device once, then tells the least time of regions."""

    def __init__(self, device: str) -> None:
        self.device = device
        a, b = (torch.randn(_SIDE, _SIDE, device=device) for _ in range(2))
        self._flops = 2 * _SIDE**3 / self._fastest(lambda: a @ b)
        self._moves: dict[int, float] = {}

    def of(self, regions: Path, task: RegionTask) -> Potential:
        """A region's potential; `regions`: where extract_regions wrote its task."""
        light = 0.0
        for subgraph in load_task(regions / task.name).subgraphs:
            moved, flops = self._needs(subgraph)
            light += max(self._moving(moved), flops / self._flops) * task.instances[subgraph.name]
        return Potential(task.seconds, light)

    def _needs(self, subgraph: Subgraph) -> tuple[int, float]:
        """Bytes that a subgraph must read and write, and operations of its matrix products."""
        inputs = make_inputs(subgraph, self.device, 0)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            outputs = load_module(subgraph, self.device)(*inputs)
        tensors = [v for v in pytree.tree_leaves((inputs, outputs)) if isinstance(v, torch.Tensor)]
        return sum(one.numel() * one.element_size() for one in tensors), float(counter.get_total_flops())

    def _moving(self, count: int) -> float:
        """Seconds that moving so many bytes takes: half are read, half written."""
        if count not in self._moves:
            source = torch.zeros(max(count // 2, 1), dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            self._moves[count] = self._fastest(lambda: target.copy_(source))
        return self._moves[count]

    def _fastest(self, call: Callable[[], Any]) -> float:
        if self.device.startswith("cuda"):
            return _fastest_on_a_gpu(call)
        took = []
        for _ in range(_TRIES):
            begun = time.perf_counter()
            call()
            took.append(time.perf_counter() - begun)
        return min(took)


def _fastest_on_a_gpu(call: Callable[[], Any]) -> float:
    took = []
    for _ in range(_TRIES):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        call()
        ended.record()
        ended.synchronize()
        took.append(begun.elapsed_time(ended) / 1e3)
    return min(took)
