"""Figures of the target to plan a kernel with: measured here, or a vendor's nominal value; else unknown."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from passagent.evaluator.hardware.machine import Machine

_GPUS = {
    "B200": (148, 8000, 126, 227, 75, 2250),
    "H200": (132, 4800, 50, 227, 67, 989),
    "H100": (132, 3350, 50, 227, 67, 989),
    "A100": (108, 2039, 40, 163, 19.5, 312),
    "A30": (56, 933, 24, 163, 10.3, 165),
    "L40S": (142, 864, 96, 99, 91.6, 362),
    "RTX 4090": (128, 1008, 72, 99, 82.6, 165),
}
"""SMs, memory GB/s, L2 MB, shared memory a block KB, fp32 TFLOP/s, dense bf16 TFLOP/s; largest variant.

NVIDIA's data sheets and architecture white papers; shared memory: CUDA C++ Programming Guide, "Compute
Capabilities" (maximum per thread block: 227 KB for 9.0 and 10.0, 163 KB for 8.0, 99 KB for 8.9).
"""

_VECTORS = {
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "f16c": "F16C",
    "avx512_bf16": "AVX-512 BF16",
    "asimd": "NEON",
}


@functools.lru_cache(maxsize=16)
def figures(
    target: str, device_name: str, machine: Machine | None = None, threads: int | None = None
) -> tuple[str, ...]:
    """The device's name, then a line for each figure: measured (of `machine`), nominal, or unknown.

    `threads`: OpenMP threads of a timed call. Read once a process.
    """
    return (device_name, *(_gpu(device_name) if target == "cuda" else _cpu(threads)), *_measured(machine))


def _gpu(device_name: str) -> list[str]:
    name = next((name for name in _GPUS if re.search(rf"\b{name}\b", device_name)), None)
    if name is None:
        return ["SMs, peak bandwidth, FLOP/s, L2 and shared memory: unknown (not in passagent's table)"]
    sms, bandwidth, l2, shared, fp32, bf16 = _GPUS[name]
    return [
        f"{sms} SMs; {shared} KB shared memory a block; {l2} MB L2 (nominal)",
        f"peak memory bandwidth: {bandwidth} GB/s (nominal)",
        f"peak arithmetic: {fp32} TFLOP/s fp32, {bf16} TFLOP/s bf16 on tensor cores (nominal)",
    ]


def _cpu(threads: int | None) -> list[str]:
    cores = len(os.sched_getaffinity(0))
    flags = set(_cpu_flags())
    vectors = [name for flag, name in _VECTORS.items() if flag in flags]
    return [
        f"OpenMP threads in a timed call, eager's and yours: {threads or 'unknown'} (omp_get_max_threads() "
        f"there; no clause takes more){'; parallel regions gain nothing' if threads == 1 else ''}",
        f"cores of this machine: {cores}",
        f"vectors: {', '.join(vectors) or 'unknown'}",
        f"caches of a core: {_caches() or 'unknown'}",
        "peak FLOP/s: unknown",
    ]


def _measured(machine: Machine | None) -> list[str]:
    if machine is None:
        return ["bandwidth and cost of a launch on this machine: unknown (not measured)"]
    counts = machine.copy_threads or (0,) * len(machine.bandwidths)
    rates = ", ".join(
        f"{rate / 1e9:.3g} GB/s at {_bytes(size)}{f' with threads: {count}' if count else ''}"
        for (size, rate), count in zip(machine.bandwidths, counts, strict=True)
    )
    return [
        f"bandwidth of a copy, read and written bytes together: {rates} (measured here)",
        f"issuing one eager operator: {machine.issue_s * 1e6:.2g} us (measured here)",
    ]


def _bytes(size: int) -> str:
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"


def _cpu_flags() -> list[str]:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", info.read_text(), re.M) if info.exists() else None
    return found.group(1).split() if found else []


def _caches() -> str:
    shown = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = (index / "type").read_text().strip()
        if kind != "Instruction":
            shown.append(f"L{(index / 'level').read_text().strip()} {(index / 'size').read_text().strip()}")
    return ", ".join(shown)
