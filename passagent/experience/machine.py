"""Two figures of the machine that a diagnosis needs: bandwidth, and the cost of issuing an operator."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise

from passagent.cache import cache_dir, write_whole
from passagent.confine.environment import device_name

SIZES = (2**20, 2**24, 2**27)
"""Working sets whose bandwidth is measured, bytes: in cache, at its border, in memory."""
KEPT_S = 24 * 3600.0
"""So long what was measured is not measured again, s: it takes torch, whose import takes seconds."""


@dataclass(frozen=True)
class Machine:
    """Measured or given."""

    issue_s: float
    """From one operator on a tiny tensor to the next, s."""
    bandwidths: tuple[tuple[int, float], ...]
    """(bytes read and written, bytes/s) of a copy, by rising size."""

    def bandwidth(self, size: int) -> float:
        """Bytes/s for moving `size` bytes: interpolated in logarithms, beyond what was measured the nearest.

        The rate of a smaller size alone would be that of a cache which the working set does not fit in.
        """
        for (small, one), (large, other) in pairwise(self.bandwidths):
            if size < large:
                share = math.log(max(size, small) / small) / math.log(large / small)
                return float(one * (other / one) ** share)
        return self.bandwidths[-1][1]


@functools.cache
def measure_machine(device: str) -> Machine:
    """The figures of `device` (`cpu`, `cuda:0`), measured at its first use in a day in about 0.1 s."""
    what = [device, device_name(device), os.cpu_count(), SIZES]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
    path = cache_dir() / "machine" / f"{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # what cannot be read is measured
        if time.time() - path.stat().st_mtime < KEPT_S:
            kept = json.loads(path.read_text())
            return Machine(float(kept["issue_s"]), tuple((int(n), float(r)) for n, r in kept["bandwidths"]))
    measured = _measure(device)
    with suppress(OSError):
        write_whole(path, json.dumps(asdict(measured)))
    return measured


def _measure(device: str) -> Machine:
    """Each figure is the best of several rounds: what the machine can do, whatever else it does meanwhile."""
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
