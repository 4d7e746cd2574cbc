"""Limits of compilers and other tools: the one table of what they may take of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolLimits:
    """Limits of a tool with all that it starts; `memory`, `cpu_s` and `descriptors`: of each process."""

    wall_s: float = 60.0
    cpu_s: int = 60
    """Processor time, s."""
    memory: int = 8 << 30
    """Address space, bytes."""
    file: int = 32 << 20
    """The largest file that it writes, and what it prints, bytes each."""
    processes: int = 256
    """Processes and threads, counted every 20 ms: beyond them all are killed."""
    descriptors: int = 256
    is_candidates: bool = True
    """Its time counts as the candidate's (tools.END)."""


COMPILE = ToolLimits()
"""A candidate's kernel, its PTX, a launcher: g++, gcc, NVRTC, ptxas."""
PRECOMPILE = ToolLimits(file=512 << 20, is_candidates=False)
"""The headers that every C++ kernel sees first."""
READ = ToolLimits(wall_s=30.0, cpu_s=30, memory=2 << 30, file=256 << 20)
"""A built object, or names in it: objdump, c++filt."""
ASK = ToolLimits(wall_s=30.0, cpu_s=30, memory=2 << 30, file=1 << 20, is_candidates=False)
"""A tool for its version."""
TOOLS = {"compile": COMPILE, "precompile the headers": PRECOMPILE, "read an object": READ, "ask": ASK}
MESSAGE = 3000
"""Characters of a compiler's messages that an author is shown."""
MAX_SOURCE = 1 << 20
"""Characters of a kernel's source, whatever it is joined of."""


_MOST_CROWDED = 4.0


def crowding() -> float:
    """How many times as long work takes while other programs want the cores, too: their load, 1 to 4.

    A candidate's limits on wall time are so many times as long: a busy machine is not its fault.
    """
    return min(_MOST_CROWDED, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
