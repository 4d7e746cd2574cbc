"""What a call does on a GPU: traced by torch.profiler, or marked for ncu. Runs in a process of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import torch

from passagent.experience.profiling.profile_record import KernelProfile

WARMUPS, CALLS = 3, 20


def trace(call: Callable[[], object], calls: int = CALLS) -> tuple[float, float, list[KernelProfile]]:
    """Microseconds of a call, of them in kernels, and the kernels of one call. Needs a GPU.

    The first figure is of many calls in a row without the tracer; copies and fills count as kernels.
    """
    from torch.profiler import ProfilerActivity, profile

    for _ in range(WARMUPS):
        call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    wall_us = (time.perf_counter() - begun) / calls * 1e6
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in found.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us()
            counts[event.name] += 1
    kernels = [
        KernelProfile(name=name, launches=max(1, round(counts[name] / calls)), duration_us=us / counts[name])
        for name, us in times.most_common()
    ]
    return wall_us, sum(times.values()) / calls, kernels


def mark(call: Callable[[], object]) -> None:
    """Run the call once for ncu, after calls that are not profiled."""
    for _ in range(WARMUPS):
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
