"""Measure what the machine can do: bandwidth, peak of a matrix product, cost of issuing an operator."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from passagent.errors import InfrastructureError
from passagent.sandbox import cache
from passagent.sandbox.environment import ask_module, device_name

SIZES = (2**20, 2**24, 2**27)
"""Working sets whose bandwidth is measured, bytes: in cache, at its border, in memory."""
PRODUCTS = {"cpu": (256, 1024), "cuda": (1024, 8192)}
"""Rows of the square matrices whose product is timed; the larger ones if the smaller take little."""
_LITTLE_S = 2e-3
"""The larger product takes at least 64 times as long as this."""
_ROUNDS, _LEAST_S = 5, 0.05
"""A figure is the best of so many rounds, and of those in so many seconds: the machine may be busy."""
KEPT_S = 24 * 3600.0
"""So long what was measured is not measured again, s: it takes torch, whose import takes seconds."""


@dataclass(frozen=True)
class Machine:
    """Measured or given."""

    issue_s: float
    """From one operator on a tiny tensor to the next, s."""
    bandwidths: tuple[tuple[int, float], ...]
    """(bytes read and written, bytes/s) of a copy, by rising size."""
    flops: tuple[tuple[str, float], ...] = ()
    """(dtype, FLOP/s) of a matrix product."""
    copy_threads: tuple[int, ...] = ()
    """On a CPU, with how many threads the copy of each size in `bandwidths` was fastest."""

    @property
    def best_bandwidth(self) -> float:
        """Bytes/s of a copy at the size that suits the machine best."""
        return max(rate for _, rate in self.bandwidths)

    def light_s(self, moved_bytes: int, flops: int, dtype: str) -> float:
        """Speed of light: what moving the bytes takes, or the FLOPs at the peak of `dtype`, if that is more.

        FLOPs of a dtype that was not measured count nothing.
        """
        moving = moved_bytes / self.bandwidth(moved_bytes)
        peak = dict(self.flops).get(dtype)
        return max(moving, flops / peak if peak else 0.0)

    def bandwidth(self, size: int) -> float:
        """Bytes/s for moving `size` bytes: interpolated in logarithms, beyond what was measured the nearest.

        The rate of a smaller size alone would be that of a cache which the working set does not fit in.
        """
        for (small, slower), (large, faster) in pairwise(self.bandwidths):
            if size < large:
                share = math.log(max(size, small) / small) / math.log(large / small)
                return float(slower * (faster / slower) ** share)
        return self.bandwidths[-1][1]


def read_machine(data: Any) -> Machine:
    """Read a Machine from its `asdict`. Raises ValueError for anything else."""
    return TypeAdapter(Machine).validate_python(data)


@functools.cache
def measure_machine(device: str) -> Machine:
    """The figures of `device` (`cpu`, `cuda:0`), measured at its first use in a day in about 1 s."""
    machine = kept_machine(device)
    if machine is None:
        machine = _measure(device)
        keep(device, machine)
    return machine


def keep(device: str, machine: Machine) -> None:
    """For `kept_machine`, if the disk can take it."""
    cache.keep(_path(device), asdict(machine))


def kept_machine(device: str) -> Machine | None:
    """The measurement of `device` within a day."""
    return cache.kept(_path(device), read_machine, KEPT_S)


def measured_now(device: str) -> Machine:
    """The figures of `device`, measured anew by a process of their own. Raises InfrastructureError."""
    try:
        return read_machine(ask_module("passagent.evaluator.hardware.machine", device, timeout_s=120))
    except (InfrastructureError, ValueError) as error:
        raise InfrastructureError(f"the rates of {device} could not be measured: {error}") from error


def _path(device: str) -> Path:
    return cache.kept_file("machine", [device, device_name(device), os.cpu_count(), SIZES, PRODUCTS])


def _measure(device: str) -> Machine:
    """Each figure is the best of several rounds: what the machine can do, whatever else it does meanwhile.

    On a CPU of one thread and of all: on a busy machine threads wait for each other.
    """
    import torch

    is_gpu, threads = device.startswith("cuda"), torch.get_num_threads()
    synchronise = torch.cuda.synchronize if is_gpu else lambda: None
    tiny = torch.ones(16, device=device)

    def seconds(call: Callable[[], object], calls: int) -> tuple[float, int]:
        """The seconds of the best round, and its threads; all threads are tried, too, if there are
        several."""
        times: list[tuple[float, int]] = []
        for count in {threads} if is_gpu else {1, threads}:
            torch.set_num_threads(count)
            begun, rounds = time.perf_counter(), 0
            while rounds < _ROUNDS or time.perf_counter() - begun < _LEAST_S:
                synchronise()
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                synchronise()
                times.append(((time.perf_counter() - start) / calls, count))
                rounds += 1
        return min(times)

    try:
        with torch.no_grad():
            issue, _ = seconds(lambda: torch.neg(tiny), 200)
            bandwidths, copy_threads = [], []
            for size in SIZES:
                source = torch.ones(size // 8, device=device)
                target = torch.empty_like(source)
                calls = max(1, 2**26 // size) if is_gpu else 1
                took, count = seconds(functools.partial(target.copy_, source), calls)
                bandwidths.append((size, size / took))
                copy_threads += [] if is_gpu else [count]
            flops = []
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                rate = 0.0
                for rows in PRODUCTS[torch.device(device).type]:
                    square = torch.ones(rows, rows, device=device, dtype=dtype)
                    took, _ = seconds(functools.partial(torch.mm, square, square), 1)
                    rate = max(rate, 2 * rows**3 / took)
                    if took > _LITTLE_S:
                        break
                flops.append((str(dtype).removeprefix("torch."), rate))
    finally:
        torch.set_num_threads(threads)
    return Machine(issue, tuple(bandwidths), tuple(flops), tuple(copy_threads))


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(sys.argv[1]))))
