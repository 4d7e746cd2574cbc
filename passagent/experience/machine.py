"""Two figures of the machine that a diagnosis needs: bandwidth, and the cost of issuing an operator."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

SIZES = (2**20, 2**24, 2**27)
"""Working sets whose bandwidth is measured, bytes: in cache, at its border, in memory."""


@dataclass(frozen=True)
class Machine:
    """Measured or given."""

    issue_s: float
    """From one operator on a tiny tensor to the next, s."""
    bandwidths: tuple[tuple[int, float], ...]
    """(bytes read and written, bytes/s) of a copy, by rising size."""

    def bandwidth(self, size: int) -> float:
        """Bytes/s for moving `size` bytes: of the largest measured size below it, else of the smallest."""
        fitting = [rate for measured, rate in self.bandwidths if measured <= size]
        return fitting[-1] if fitting else self.bandwidths[0][1]


@functools.cache
def measure_machine(device: str) -> Machine:
    """Measure `device` (`cpu`, `cuda:0`) in about 0.1 s, once a process.

    Each figure is the best of several rounds: what the machine can do, whatever else it does meanwhile.
    """
    import torch

    synchronise = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    tiny = torch.ones(16, device=device)

    def seconds(call: object, calls: int, rounds: int = 5) -> float:
        times = []
        for _ in range(rounds):
            synchronise()
            start = time.perf_counter()
            for _ in range(calls):
                call()  # type: ignore[operator]
            synchronise()
            times.append((time.perf_counter() - start) / calls)
        return min(times)

    with torch.no_grad():
        seconds(lambda: torch.neg(tiny), 50, 1)
        issue = seconds(lambda: torch.neg(tiny), 200)
        bandwidths = []
        for size in SIZES:
            source = torch.ones(size // 8, device=device)
            target = torch.empty_like(source)
            calls = max(1, 2**26 // size)
            rate = size / seconds(functools.partial(target.copy_, source), calls)
            bandwidths.append((size, rate))
    return Machine(issue, tuple(bandwidths))
