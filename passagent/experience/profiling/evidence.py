"""From a profile to what limits a pass: each finding with the figure that it rests on and its threshold.

A rule whose figure is missing finds nothing, and the figure is named. Nothing is guessed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from passagent.evaluator.result import INEXACT
from passagent.experience.diagnosis import PLAUSIBLE, SHARE
from passagent.experience.profiling.profile_record import GraphProfile, KernelProfile, Profile

VERSION = 1
"""Of the thresholds below."""
MOST_LINES = 12
"""Of a diagnosis, as a model is given it."""

Limit = Literal[
    "memory", "compute", "tensor", "latency", "occupancy", "spill", "divergence", "at_the_roofline", "inexact"
]

LAUNCH_SHARE = 0.5
"""Of a call's time outside kernels, from which launches limit it."""
TINY_US, TINY_LAUNCHES = 5.0, 8
"""So many kernels of less than this: each is over before the next is launched."""
SPILL_SHARE = 0.05
"""Of all sectors of memory traffic those to local memory."""
EMPTY_SHARE = 0.5
"""Blocks for each multiprocessor: below that some stand idle."""
OCCUPANCY_PERCENT = 25.0
BUSY_PERCENT = 60.0
"""Of its peak, from which a unit is what limits a kernel (Nsight Compute's own)."""
TENSOR_PERCENT = 50.0
ROOFLINE_PERCENT = 90.0
ROOFLINE = 1.1
"""Measured time over the speed of light, up to which little is left to gain."""
_SURE, _LIKELY = 2.0, 0.3
"""Weights of what a trace shows of a whole call, and of what rates suggest; a kernel's is its share."""
SECTORS = 20.0
"""32-byte sectors of a warp's request: 16 where each thread moves 16 bytes side by side, 32 all apart."""
THREADS = 24.0
"""Of a warp's 32 that take part in an instruction."""

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
    """What a profile shows. `limits` is empty where it shows nothing; then `missing` may say why."""

    version: int = VERSION
    limits: list[Finding]
    """The most important first."""
    missing: list[str]
    """Figures that a rule needed."""

    @property
    def main(self) -> Limit | None:
        """What limits most; None: abstained."""
        return self.limits[0].limit if self.limits else None

    def text(self, notes: list[str] | None = None) -> str:
        """At most MOST_LINES lines for an author."""
        lines = [finding.line() for finding in self.limits[:8]]
        if not lines:
            lines = ["no limit is shown by what was measured"]
        if self.missing:
            lines.append(f"not measured: {', '.join(self.missing[:8])}")
        return "\n".join([*lines, *(notes or [])][:MOST_LINES])


def examine(profile: Profile) -> Evidence:
    """What the figures of a profile show. A graph's launches come first, then its kernels by their time."""
    found: list[Finding] = []
    missing: list[str] = []
    if profile.exactness is not None and profile.exactness <= INEXACT:
        found.append(
            Finding(
                limit="inexact",
                graph="all",
                metric="AS over the speedups alone",
                value=profile.exactness,
                threshold=INEXACT,
                advice=_ADVICE["inexact"],
            )
        )
    for graph in profile.graphs:
        found += _of_graph(graph, missing)
        for kernel, weight in _by_time(graph):
            found += _of_kernel(profile, graph, kernel, weight, missing)
    # what is certain of a whole call, then kernels by their share; of one kernel the order of the rules
    found.sort(key=lambda finding: -finding.weight)
    return Evidence(limits=found, missing=list(dict.fromkeys(missing)))


def _by_time(graph: GraphProfile) -> list[tuple[KernelProfile, float]]:
    """Kernels with counters or a compiler's figures, and their share of the time in kernels."""
    times = [(kernel.duration_us or 0.0) * kernel.launches for kernel in graph.kernels]
    total = sum(times) or 1.0
    pairs = [(kernel, time / total) for kernel, time in zip(graph.kernels, times, strict=True)]
    return sorted(pairs, key=lambda pair: -pair[1])


def _of_graph(graph: GraphProfile, missing: list[str]) -> list[Finding]:
    found: list[Finding] = []

    def add(limit: Limit, metric: str, value: float, threshold: float, weight: float, unit: str = "") -> None:
        found.append(
            Finding(
                limit=limit,
                graph=graph.name,
                metric=metric,
                value=value,
                threshold=threshold,
                unit=unit,
                advice=_ADVICE[limit],
                weight=weight,
            )
        )

    tiny = _tiny(graph)
    share = max(0.0, 1.0 - graph.busy_us / graph.wall_us) if graph.wall_us and graph.busy_us else None
    if share is not None and share >= LAUNCH_SHARE:
        add("latency", "share of a call outside kernels", share, LAUNCH_SHARE, _SURE)
    elif tiny is not None and tiny < TINY_US:
        add("latency", f"{graph.launches} launches, of typically", tiny, TINY_US, _SURE, "us")
    if graph.measured_us:
        issuing = (graph.issue_us or 0.0) * max(graph.launches or 0, 1)
        shares: list[tuple[Limit, str, float | None]] = [
            ("memory", "share of the time that moving inputs and outputs takes", graph.memory_us),
            ("compute", "share of the time that the FLOPs take at the peak", graph.compute_us),
            ("latency", "share of the time that issuing takes", issuing),
        ]
        for limit, metric, us in sorted(shares, key=lambda one: -(one[2] or 0.0)):
            if us is not None and us >= SHARE * graph.measured_us:
                add(limit, metric, us / graph.measured_us, SHARE, _LIKELY)
    if graph.headroom is not None and PLAUSIBLE <= graph.headroom <= ROOFLINE:
        add("at_the_roofline", "time over the speed of light", graph.headroom, ROOFLINE, _LIKELY)
    return found


def _tiny(graph: GraphProfile) -> float | None:
    """What a launch typically takes where there are many, us."""
    times = sorted(kernel.duration_us for kernel in graph.kernels if kernel.duration_us is not None)
    return times[len(times) // 2] if times and (graph.launches or 0) >= TINY_LAUNCHES else None


class _Found:
    """Findings on one kernel, and the figures that were missing."""

    def __init__(self, graph: GraphProfile, kernel: KernelProfile, weight: float, missing: list[str]) -> None:
        self.graph, self.kernel, self.weight, self.missing = graph, kernel, weight, missing
        self.findings: list[Finding] = []

    def add(
        self, limit: Limit, metric: str, value: float, threshold: float, unit: str = "", advice: str = ""
    ) -> None:
        self.findings.append(
            Finding(
                limit=limit,
                graph=self.graph.name,
                kernel=self.kernel.name[:60],
                metric=metric,
                value=value,
                threshold=threshold,
                unit=unit,
                advice=advice or _ADVICE[limit],
                weight=self.weight,
            )
        )

    def known(self, name: str) -> float | None:
        if name not in self.kernel.metrics:
            self.missing.append(name)
        return self.kernel.metrics.get(name)


def _of_kernel(
    profile: Profile, graph: GraphProfile, kernel: KernelProfile, weight: float, missing: list[str]
) -> list[Finding]:
    found = _Found(graph, kernel, weight, missing)
    if kernel.metrics:
        _counted(profile, found)
    elif kernel.stack_bytes:
        found.add("spill", "local memory of a thread", kernel.stack_bytes, 0, "B")
    if kernel.scalar_loops and not kernel.vector_loops:
        advice = "; ".join(kernel.missed[:2]) or "no loop became vector code"
        found.add("compute", "loops without vector code", kernel.scalar_loops, 1, "", advice)
    return found.findings


def _counted(profile: Profile, found: _Found) -> None:
    """What hardware counters show. The order of the rules counts: the first explains those after it."""
    local, other = _sectors(found, "local"), _sectors(found, "global")
    if local is not None and other is not None and local >= SPILL_SHARE * (local + other) > 0:
        found.add("spill", "share of traffic to local memory", local / (local + other), SPILL_SHARE)
    grid = found.known("grid")
    if grid is not None and profile.multiprocessors and grid < EMPTY_SHARE * profile.multiprocessors:
        found.add("occupancy", "blocks for each multiprocessor", grid / profile.multiprocessors, EMPTY_SHARE)
    tensor = found.known("tensor_percent")
    if tensor is not None and tensor >= TENSOR_PERCENT:
        found.add("tensor", "tensor cores busy", tensor, TENSOR_PERCENT, "%")
    for name in ("load", "store"):
        sectors, requests = found.known(f"global_{name}_sectors"), found.known(f"global_{name}_requests")
        if sectors is not None and requests and sectors / requests >= SECTORS:
            found.add("memory", f"sectors of a {name}", sectors / requests, SECTORS, "", _UNCOALESCED)
    compute, memory = found.known("compute_percent"), found.known("memory_percent")
    if compute is not None and memory is not None:
        if memory >= max(BUSY_PERCENT, compute):
            found.add("memory", "memory busy", memory, BUSY_PERCENT, "%")
        elif compute >= BUSY_PERCENT:
            found.add("compute", "compute units busy", compute, BUSY_PERCENT, "%")
    threads = found.known("threads_an_instruction")
    if threads is not None and threads < THREADS:
        found.add("divergence", "threads in an instruction", threads, THREADS)
    if compute is None or memory is None:
        return
    occupancy, busiest = found.known("occupancy_percent"), max(compute, memory)
    if not found.findings:
        if occupancy is not None and occupancy < OCCUPANCY_PERCENT:
            found.add("occupancy", "warps at work", occupancy, OCCUPANCY_PERCENT, "%")
        else:
            found.add("latency", "the busiest unit", busiest, BUSY_PERCENT, "%", _WAITING)
    if busiest >= ROOFLINE_PERCENT:
        found.add("at_the_roofline", "the busiest unit", busiest, ROOFLINE_PERCENT, "%")


def _sectors(found: _Found, space: str) -> float | None:
    loads, stores = found.known(f"{space}_load_sectors"), found.known(f"{space}_store_sectors")
    return None if loads is None or stores is None else loads + stores
