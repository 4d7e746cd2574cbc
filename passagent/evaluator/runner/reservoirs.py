"""The input sets of a subgraph in a worker: each comes out of shared memory when it is first used.

A set of large weights takes long to copy to a device, and not every worker uses all. Where all of them took
too much of the device, a worker holds those of the request at hand. On the CPU values stay out of this
process's memory: a kernel cannot read ahead.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from passagent.evaluator.runner.worker_messages import Given
from passagent.sandbox.channel import Arena

_SHARE = 8
"""Sets that together take more than this part of a GPU's memory are large: the baseline's worker, the
candidate's and eager's may hold all of them at a time."""


def device_bytes(device: str) -> int:
    """The whole memory of a GPU. Its properties are no way to it here: torch counts devices before it
    gives them, which fails now and then in a sandbox.
    """
    return int(torch.cuda.mem_get_info(device)[1])


class InputSets:
    """For each set the reservoirs of its tensors (fresh.py), flat, on the device, and the plain values."""

    def __init__(self, described: list[list[Given]], arena: Arena, device: str) -> None:
        """`described`: as baseline.py describes them; `arena`: sealed, and closed with this."""
        self._described, self._arena, self._device = described, arena, device
        self._taken: dict[int, list[Any]] = {}
        self.are_large = device != "cpu" and arena.size > device_bytes(device) // _SHARE

    def __getitem__(self, chosen: int) -> list[Any]:
        if chosen not in self._taken:
            self._taken[chosen] = [self._value(item) for item in self._described[chosen]]
        return self._taken[chosen]

    def _value(self, item: Given) -> Any:
        if item.tensor is None:
            return item.value
        if self._device == "cpu":
            return self._arena.unmapped(item.tensor)
        values = self._arena.view(item.tensor)
        return values if item.host else values.to(self._device)

    def keep(self, chosen: Collection[int]) -> bool:
        """Let go of the other sets, to be read again when they are asked for; whether there were any."""
        others = self._taken.keys() - set(chosen)
        for number in others:
            del self._taken[number]
        return bool(others)

    def close(self) -> None:
        """Let go of the shared memory."""
        self._taken.clear()
        self._arena.close()
