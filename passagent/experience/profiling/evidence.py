"""From a profile to what limits a pass: each finding with the figure that it rests on and its threshold.

A rule whose figure is missing finds nothing, and the figure is named. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel

from passagent.evaluator.result import INEXACT
from passagent.experience.diagnosis import PLAUSIBLE, SHARE
from passagent.experience.profiling.profile_record import GraphProfile, KernelProfile, Profile

VERSION = 1
"""The version of the thresholds below."""
MOST_LINES = 12
"""The most lines of a diagnosis that a model gets."""

Limit = Literal[
    "memory", "compute", "tensor", "latency", "occupancy", "spill", "divergence", "at_the_roofline", "inexact"
]

LAUNCH_SHARE = 0.5
"""The share of a call's time outside kernels from which launches limit it."""
TINY_US, TINY_LAUNCHES = 5.0, 8
"""So many kernels of less than this: each is over before the next is launched."""
SPILL_SHARE = 0.05
"""The share of all sectors of memory traffic that go to local memory."""
EMPTY_SHARE = 0.5
"""Blocks for each multiprocessor: below that some stand idle."""
OCCUPANCY_PERCENT = 25.0
BUSY_PERCENT = 60.0
"""The percentage of its peak from which a unit limits a kernel (Nsight Compute's own)."""
TENSOR_PERCENT = 50.0
ROOFLINE_PERCENT = 90.0
ROOFLINE = 1.1
"""Measured time over the speed of light, up to which little is left to gain."""
_SURE, _LIKELY = 2.0, 0.3
"""Weights of what a trace shows of a whole call, and of what rates suggest; a kernel's is its share."""
SECTORS = 20.0
"""32-byte sectors of a warp's request: 16 where each thread moves 16 bytes side by side, 32 all apart."""
THREADS = 24.0
"""The number of a warp's 32 threads that should take part in an instruction."""

_ADVICE: dict[Limit, str] = {
    "memory": "only fewer bytes help: fuse, read each input once, keep the dtype small",
    "compute": "fewer instructions help: cheaper arithmetic, less index computing, wider loads",
    "tensor": "the tensor cores are busy: better tiles or a smaller dtype help, not less traffic",
    "latency": "fewer launches, allocations and copies help; faster arithmetic does not",
    "occupancy": "more blocks, or fewer registers and less shared memory of each, keep the device busy",
    "spill": "smaller tiles or fewer values alive at once keep values in registers",
    "divergence": "let the threads of a warp take the same branch and loop equally often",
    "at_the_roofline": "little is left to gain on this kernel; look elsewhere",
    "inexact": "round where eager stores a result, and use no approximations",
}
_WAITING = "warps wait for memory or each other: more loads in flight at once help"
_UNCOALESCED = "let neighbouring threads touch neighbouring elements, through shared memory if need be"


class Finding(BaseModel):
    """One limit, and what shows it."""

    limit: Limit
    graph: str
    kernel: str = ""
    metric: str
    value: float
    threshold: float
    unit: str = ""
    advice: str
    weight: float = 1.0
    """Share of the graph's time in kernels that the kernel takes; of a whole call by what is sure of it."""

    def line(self) -> str:
        """In words."""
        where = f"{self.graph}, {self.kernel}" if self.kernel else self.graph
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"{self.limit.replace('_', ' ')} ({where}): {self.metric} {self.value:.3g}{unit}, "
            f"threshold {self.threshold:.3g}; {self.advice}"
        )


class Evidence(BaseModel):
    """The evidence of a profile. `limits` is empty where it shows nothing; then `missing` may say why."""

    version: int = VERSION
    limits: list[Finding]
    """The most important first."""
    missing: list[str]
    """Figures that a rule needed."""

    @property
    def main(self) -> Limit | None:
        """Return what limits most; None: abstained."""
        return self.limits[0].limit if self.limits else None

    def text(self, notes: list[str] | None = None) -> str:
        """At most MOST_LINES lines for an author."""
        lines = [finding.line() for finding in self.limits[:8]]
        if not lines:
            lines = ["no limit is shown by what was measured"]
        if self.missing:
            lines.append(f"not measured: {', '.join(self.missing[:8])}")
        return "\n".join([*lines, *(notes or [])][:MOST_LINES])


class _Rules:
    """Findings of the rules so far, and the figures that a rule missed."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.missing: list[str] = []

    def add(
        self, limit: Limit, metric: str, value: float, threshold: float, unit: str = "", **more: Any
    ) -> None:
        """Add a finding; `more`: what else it has, such as `graph`, `kernel` and `weight`."""
        figures = {"limit": limit, "metric": metric, "value": value, "threshold": threshold, "unit": unit}
        self.findings.append(Finding(**{"advice": _ADVICE[limit], **figures, **more}))

    def figure(self, kernel: KernelProfile, name: str) -> float | None:
        """Return a counter of the kernel; one that was not read is noted as missing."""
        if name not in kernel.metrics:
            self.missing.append(name)
        return kernel.metrics.get(name)


def examine(profile: Profile) -> Evidence:
    """Examine the figures of a profile. A graph's launches come first, then its kernels by their time."""
    rules = _Rules()
    if profile.exactness is not None and profile.exactness <= INEXACT:
        rules.add("inexact", "AS over the speedups alone", profile.exactness, INEXACT, graph="all")
    for graph in profile.graphs:
        _examine_graph(graph, rules)
        for kernel, weight in _by_time(graph):
            _examine_kernel(profile, kernel, rules, {"graph": graph.name, "weight": weight})
    # what is certain of a whole call, then kernels by their share; of one kernel the order of the rules
    findings = sorted(rules.findings, key=lambda finding: -finding.weight)
    return Evidence(limits=findings, missing=list(dict.fromkeys(rules.missing)))


def _by_time(graph: GraphProfile) -> list[tuple[KernelProfile, float]]:
    """Return kernels and their share of the time in kernels, the longest first."""
    times = [(kernel.duration_us or 0.0) * kernel.launches for kernel in graph.kernels]
    total = sum(times) or 1.0
    pairs = [(kernel, time / total) for kernel, time in zip(graph.kernels, times, strict=True)]
    return sorted(pairs, key=lambda pair: -pair[1])


def _examine_graph(graph: GraphProfile, rules: _Rules) -> None:
    sure: dict[str, Any] = {"graph": graph.name, "weight": _SURE}
    likely: dict[str, Any] = {"graph": graph.name, "weight": _LIKELY}
    times = sorted(kernel.duration_us for kernel in graph.kernels if kernel.duration_us is not None)
    typical_us = times[len(times) // 2] if times and (graph.launches or 0) >= TINY_LAUNCHES else None
    share = max(0.0, 1.0 - graph.busy_us / graph.wall_us) if graph.wall_us and graph.busy_us else None
    if share is not None and share >= LAUNCH_SHARE:
        rules.add("latency", "share of a call outside kernels", share, LAUNCH_SHARE, **sure)
    elif typical_us is not None and typical_us < TINY_US:
        rules.add("latency", f"{graph.launches} launches, of typically", typical_us, TINY_US, "us", **sure)
    if graph.measured_us:
        issuing = (graph.issue_us or 0.0) * max(graph.launches or 0, 1)
        shares: list[tuple[Limit, str, float | None]] = [
            ("memory", "share of the time that moving inputs and outputs takes", graph.memory_us),
            ("compute", "share of the time that the FLOPs take at the peak", graph.compute_us),
            ("latency", "share of the time that issuing takes", issuing),
        ]
        for limit, metric, us in sorted(shares, key=lambda triple: -(triple[2] or 0.0)):
            if us is not None and us >= SHARE * graph.measured_us:
                rules.add(limit, metric, us / graph.measured_us, SHARE, **likely)
    if graph.headroom is not None and PLAUSIBLE <= graph.headroom <= ROOFLINE:
        rules.add("at_the_roofline", "time over the speed of light", graph.headroom, ROOFLINE, **likely)


def _examine_kernel(profile: Profile, kernel: KernelProfile, rules: _Rules, where: dict[str, Any]) -> None:
    where = where | {"kernel": kernel.name[:60]}
    if kernel.metrics:
        _examine_counters(profile, kernel, rules, where)
    elif kernel.stack_bytes:
        rules.add("spill", "local memory of a thread", kernel.stack_bytes, 0, "B", **where)
    if kernel.scalar_loops and not kernel.vector_loops:
        advice = "; ".join(kernel.missed[:2]) or "no loop became vector code"
        rules.add("compute", "loops without vector code", kernel.scalar_loops, 1, advice=advice, **where)


def _examine_counters(profile: Profile, kernel: KernelProfile, rules: _Rules, where: dict[str, Any]) -> None:
    """Examine hardware counters. The order of the rules counts: the first explains those after it."""
    before = len(rules.findings)
    add: Callable[..., None] = partial(rules.add, **where)
    figure = partial(rules.figure, kernel)
    local, other = _sectors(figure, "local"), _sectors(figure, "global")
    if local is not None and other is not None and local >= SPILL_SHARE * (local + other) > 0:
        add("spill", "share of traffic to local memory", local / (local + other), SPILL_SHARE)
    grid = figure("grid")
    if grid is not None and profile.multiprocessors and grid < EMPTY_SHARE * profile.multiprocessors:
        add("occupancy", "blocks for each multiprocessor", grid / profile.multiprocessors, EMPTY_SHARE)
    tensor = figure("tensor_percent")
    if tensor is not None and tensor >= TENSOR_PERCENT:
        add("tensor", "tensor cores busy", tensor, TENSOR_PERCENT, "%")
    for name in ("load", "store"):
        sectors, requests = figure(f"global_{name}_sectors"), figure(f"global_{name}_requests")
        if sectors is not None and requests and sectors / requests >= SECTORS:
            add("memory", f"sectors of a {name}", sectors / requests, SECTORS, advice=_UNCOALESCED)
    compute, memory = figure("compute_percent"), figure("memory_percent")
    if compute is not None and memory is not None:
        if memory >= max(BUSY_PERCENT, compute):
            add("memory", "memory busy", memory, BUSY_PERCENT, "%")
        elif compute >= BUSY_PERCENT:
            add("compute", "compute units busy", compute, BUSY_PERCENT, "%")
    threads = figure("threads_an_instruction")
    if threads is not None and threads < THREADS:
        add("divergence", "threads in an instruction", threads, THREADS)
    if compute is None or memory is None:
        return
    occupancy, busiest = figure("occupancy_percent"), max(compute, memory)
    if len(rules.findings) == before:
        if occupancy is not None and occupancy < OCCUPANCY_PERCENT:
            add("occupancy", "warps at work", occupancy, OCCUPANCY_PERCENT, "%")
        else:
            add("latency", "the busiest unit", busiest, BUSY_PERCENT, "%", advice=_WAITING)
    if busiest >= ROOFLINE_PERCENT:
        add("at_the_roofline", "the busiest unit", busiest, ROOFLINE_PERCENT, "%")


def _sectors(figure: Callable[[str], float | None], space: str) -> float | None:
    loads, stores = figure(f"{space}_load_sectors"), figure(f"{space}_store_sectors")
    return None if loads is None or stores is None else loads + stores
