"""Estimate a kernel's cost on a GPU, roughly: how much memory its programs keep under way, and what is idle.

It orders plans before any is measured, and tells which of them come to the same launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from passagent.expert.choices import Plan

BANDWIDTH = 4e6
"""Bytes a microsecond of an H200's memory, as large kernels reach it."""
LATENCY = 0.7
"""Microseconds from a load to its value under load."""
UNDER_WAY = BANDWIDTH * LATENCY
"""Bytes that must be under way to use the bandwidth (Little's law)."""
PROCESSORS, THREADS, PROGRAMS, REGISTERS = 132, 2048, 32, 65536
"""The processors of an H200, and what each holds."""
START = 2.0
"""Microseconds of the device for an empty kernel."""


@dataclass(frozen=True)
class Work:
    """One part of a kernel in one of a task's graphs: its form (see blocks.py) and its sizes."""

    function: str
    """The plan's function for such parts: _run, _rows, ..."""
    options: tuple[str, ...]
    rows: int
    lanes: int
    height: int
    moved: int
    """Bytes."""


@dataclass(frozen=True)
class Launch:
    """The launch that a plan makes of a part."""

    programs: int
    block: int
    together: int
    warps: int
    stages: int = 0
    """The stages of an attention's loop over its keys."""


def launches(works: Iterable[Work], plan: Plan) -> tuple[Launch, ...]:
    """The launches of a plan, by the very functions that its pass will hold."""
    from passagent.expert.write.cuda_grid import FUNCTIONS, helpers

    arithmetic = SimpleNamespace(cdiv=_cdiv, next_power_of_2=lambda n: 1 << max(n - 1, 0).bit_length())
    functions: dict[str, Any] = {"triton": arithmetic}
    texts = "".join(f"{name}(" for name in FUNCTIONS) + "window=True ends=True"
    exec("\n".join(helpers(texts, plan.block, plan.warps)), functions)
    return tuple(_launch(work, functions[work.function], plan.stages) for work in works)


def _launch(work: Work, function: Any, stages: int) -> Launch:
    options = dict.fromkeys(work.options, True)
    if work.function == "_run":
        block, warps = function(work.lanes, **options)
        return Launch(_cdiv(work.lanes, block), block, 1, warps)
    sizes = [work.rows, work.lanes, *([work.height] if work.height else [])]
    rows, block, together, warps = function(*sizes, **options)
    if work.function == "_attention":
        return Launch(rows, block, together, warps, stages if work.lanes > block else 0)
    return Launch(_cdiv(rows, together) if work.function == "_rows" else rows, block, together, warps)


def microseconds(works: Iterable[Work], plan: Plan) -> float:
    """The parts' time on the device, one after the other."""
    works = list(works)
    return sum(_time(w, launch) for w, launch in zip(works, launches(works, plan), strict=True))


def _time(work: Work, launch: Launch) -> float:
    """Bytes over the bandwidth that the bytes under way allow; idle lanes cost a little."""
    elements = max(1, work.rows) * work.lanes * max(1, work.height)
    held = launch.block * launch.together
    threads = 32 * launch.warps
    registers = max(32, 2 * held // threads) * threads
    resident = min(PROGRAMS, THREADS // threads, max(1, REGISTERS // registers)) * PROCESSORS
    # A thread keeps a handful of 16-byte loads under way, not more.
    each = min(work.moved / launch.programs, threads * 64)
    under_way = min(launch.programs, resident) * each
    turns = _cdiv(launch.programs, resident)
    idle = held * launch.programs / max(elements, 1)
    slowed = max(1.0, UNDER_WAY / under_way, 0.5 * idle)
    return START + LATENCY + 0.1 * turns + work.moved / BANDWIDTH * slowed


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
