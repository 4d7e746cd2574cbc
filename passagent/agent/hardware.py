"""Figures of the target to plan a kernel with: vendors' nominal values, or what this CPU says of itself."""

from __future__ import annotations

import os
import re
from pathlib import Path

_GPUS = {
    "B200": (148, 8000, 126, 227, 75, 2250),
    "H200": (132, 4800, 50, 227, 67, 989),
    "H100": (132, 3350, 50, 227, 67, 989),
    "A100": (108, 2039, 40, 163, 19.5, 312),
    "A30": (56, 933, 24, 163, 10.3, 165),
    "L40S": (142, 864, 96, 99, 91.6, 362),
    "RTX 4090": (128, 1008, 72, 99, 82.6, 165),
}
"""SMs, memory GB/s, L2 MB, shared memory a block KB, fp32 TFLOP/s, dense bf16 TFLOP/s; largest variant."""

_VECTORS = {
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "f16c": "F16C",
    "avx512_bf16": "AVX-512 BF16",
    "asimd": "NEON",
}


def figures(target: str, device_name: str) -> str:
    """One line on the target; a GPU that is not in the table is named without figures."""
    if target == "cuda":
        name = next((name for name in _GPUS if re.search(rf"\b{name}\b", device_name)), None)
        if name is None:
            return f"{device_name} (no figures at hand; see search_knowledge)"
        sms, bandwidth, l2, shared, fp32, bf16 = _GPUS[name]
        return (
            f"{device_name}: {sms} SMs, {bandwidth} GB/s, {l2} MB L2, {shared} KB shared memory a block, "
            f"{fp32} TFLOP/s fp32, {bf16} TFLOP/s bf16 (nominal)"
        )
    cores = len(os.sched_getaffinity(0))
    parts = [f"{device_name}: {cores} cores for OpenMP (shared by eager and your kernel)"]
    flags = set(_cpu_flags())
    vectors = [name for flag, name in _VECTORS.items() if flag in flags]
    parts += [f"vectors: {', '.join(vectors)}"] if vectors else []
    parts += [f"caches of a core: {caches}"] if (caches := _caches()) else []
    return "; ".join(parts)


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
