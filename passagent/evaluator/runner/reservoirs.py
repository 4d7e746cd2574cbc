"""The input sets of a subgraph in a worker: each comes out of shared memory when it is first used.

A set of large weights takes long to copy to a device, and not every worker uses all. On the CPU values stay
out of this process's memory: a kernel cannot read ahead.
"""

from __future__ import annotations

from typing import Any

from passagent.confine.channel import Arena
from passagent.evaluator.runner.worker_messages import Given


class InputSets:
    """For each set the reservoirs of its tensors (fresh.py), flat, on the device, and the plain values."""

    def __init__(self, described: list[list[Given]], arena: Arena, device: str) -> None:
        """`described`: as baseline.py describes them; `arena`: sealed, and closed with this."""
        self._described, self._arena, self._device = described, arena, device
        self._taken: dict[int, list[Any]] = {}

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

    def close(self) -> None:
        """Let go of the shared memory."""
        self._taken.clear()
        self._arena.close()
