"""The parts of a measurement: the raw times of both sides, and the speedup that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from passagent.evaluator.result import Measured
from passagent.evaluator.runner.process import WorkerAnswer
from passagent.evaluator.runner.worker_messages import RunReply

LEAST = 10
"""The part of a time that counts, whatever is subtracted: a tenth."""


def counted(ns: int, calls: int, overhead_ns: int) -> int:
    """The time of one call out of so many together, less the host's part."""
    return max(1, round(max(ns - overhead_ns, ns / LEAST) / calls))


@dataclass
class Samples:
    """Raw times of one side, ns."""

    blocks: list[list[int]] = field(default_factory=list)
    """End to end, block by block, as the worker's clock saw them."""
    hidden: list[int] = field(default_factory=list)
    """For each block what another's clock (the referee's, eager's worker's) saw beyond the own times."""
    waited: list[int] = field(default_factory=list)
    """The time that a core was waited for meanwhile, in blocks that begin on a signal."""
    copying: list[list[int]] = field(default_factory=list)
    """The time of copying each call's outputs, where they were."""
    calls: int = 1
    """Calls in each of the times, and what of a time is the host's (hostless.py): """
    overhead_ns: int = 0
    busy_ns: tuple[int, int] = 0, 0
    """The processor time of all of the worker's threads for its blocks, and how long these took, ns."""

    @property
    def counted(self) -> list[list[int]]:
        """The time of a call, block by block, as it counts for the speedup."""
        return [[counted(n, self.calls, self.overhead_ns) for n in block] for block in self.blocks]

    @property
    def e2e(self) -> list[int]:
        """All end-to-end times in order."""
        return [n for block in self.blocks for n in block]

    def add(self, answer: WorkerAnswer[RunReply]) -> None:
        """Take a block."""
        times = answer.reply.samples
        self.blocks.append(times)
        self.copying.append(answer.reply.copying)
        self.hidden.append((answer.clock_ns or 0) - sum(times))
        self.waited.append(answer.waited_ns)
        self.busy_ns = self.busy_ns[0] + answer.busy_ns[0], self.busy_ns[1] + answer.busy_ns[1]


@dataclass
class Timing:
    """Both sides of one subgraph."""

    eager: Samples = field(default_factory=Samples)
    compiled: Samples = field(default_factory=Samples)
    pairs: list[int] = field(default_factory=list)
    """Blocks that each pair of workers made."""
    speedup: float = math.nan
    """eager / compiled, end to end: see estimate.ratio."""
    eager_ns: float = math.nan
    """Eager's time, end to end, at which `speedup` was measured: compiled takes `eager_ns / speedup`."""
    low: float = math.nan
    """Interval of the speedup (estimate.CONFIDENCE), and `high`."""
    high: float = math.nan
    unstable: bool = False
    is_slow: bool = False
    """Its calls take so long that a few tell (timing.SLOW_S)."""
    hidden: Measured | None = None
    """The time that the candidate's clock leaves out (clocks.hides_time)."""
