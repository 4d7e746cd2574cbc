"""From a profile to what limits a pass: each finding with the figure that it rests on and its threshold.

A rule whose figure is missing finds nothing, and the figure is named. Nothing is guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from passagent.evaluator.result import INEXACT
from passagent.experience.diagnosis import ADVICE, PLAUSIBLE, SHARE
from passagent.experience.profiling.profile_record import Finding, GraphProfile, KernelProfile, Limit, Profile

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

_ADVICE: dict[str, str] = ADVICE | {
    "compute": "fewer instructions help: cheaper arithmetic, less index computing, wider loads",
    "tensor": "the tensor cores are busy: better tiles or a smaller dtype help, not less traffic",
    "occupancy": "more blocks, or fewer registers and less shared memory of each, keep the device busy",
    "spill": "smaller tiles or fewer values alive at once keep values in registers",
    "divergence": "let the threads of a warp take the same branch and loop equally often",
    "at_the_roofline": "little is left to gain on this kernel; look elsewhere",
    "inexact": "round where eager stores a result, and use no approximations",
}
_WAITING = "warps wait for memory or each other: more loads in flight at once help"
_UNCOALESCED = "let neighbouring threads touch neighbouring elements, through shared memory if need be"


def _busiest(metrics: Mapping[str, float]) -> float:
    return max(metrics["compute_percent"], metrics["memory_percent"])


def _of(metrics: Mapping[str, float], space: str) -> float:
    return metrics[f"{space}_load_sectors"] + metrics[f"{space}_store_sectors"]


def _rate(metrics: Mapping[str, float], access: str) -> float:
    return metrics[f"global_{access}_sectors"] / metrics[f"global_{access}_requests"]


class _Rule(NamedTuple):
    """A limit of a kernel that is shown by hardware counters."""

    limit: Limit
    metric: str
    value: Callable[[Mapping[str, float]], float]
    """Makes the figure of counters; raises KeyError for one that was not read."""
    threshold: float
    unit: str = ""
    is_least: bool = False
    """The figure shows the limit where it is below the threshold, not from it on."""
    advice: str = ""


_COUNTER_RULES = (
    _Rule("spill", "share of traffic to local memory",
          lambda m: _of(m, "local") / (_of(m, "local") + _of(m, "global")), SPILL_SHARE),
    _Rule("occupancy", "blocks for each multiprocessor",
          lambda m: m["grid"] / m["multiprocessors"], EMPTY_SHARE, is_least=True),
    _Rule("tensor", "tensor cores busy", lambda m: m["tensor_percent"], TENSOR_PERCENT, "%"),
    _Rule("memory", "sectors of a load", lambda m: _rate(m, "load"), SECTORS, advice=_UNCOALESCED),
    _Rule("memory", "sectors of a store", lambda m: _rate(m, "store"), SECTORS, advice=_UNCOALESCED),
    _Rule("memory", "memory busy",
          lambda m: m["memory_percent"] * (m["memory_percent"] >= m["compute_percent"]), BUSY_PERCENT, "%"),
    _Rule("compute", "compute units busy",
          lambda m: m["compute_percent"] * (m["compute_percent"] > m["memory_percent"]), BUSY_PERCENT, "%"),
    _Rule("divergence", "threads in an instruction",
          lambda m: m["threads_an_instruction"], THREADS, is_least=True),
)  # fmt: skip
"""The order counts: the first explains those after it."""
_QUIET_RULES = (
    _Rule("occupancy", "warps at work", lambda m: m["occupancy_percent"], OCCUPANCY_PERCENT, "%", True),
    _Rule("latency", "the busiest unit", _busiest, BUSY_PERCENT, "%", True, _WAITING),
)
"""The first of them that holds explains a kernel about which the others say nothing."""
_ROOFLINE_RULE = _Rule("at_the_roofline", "the busiest unit", _busiest, ROOFLINE_PERCENT, "%")


def examine(profile: Profile) -> Profile:
    """Fill in what the figures of a profile show: its `limits`, and the figures that are `missing`.

    What is certain of a whole call comes first, then kernels by their time; of one kernel the order of the
    rules.
    """
    findings, missing = list[Finding](), list[str]()
    if profile.exactness is not None and profile.exactness <= INEXACT:
        findings.append(
            _finding("inexact", "AS over the speedups alone", profile.exactness, INEXACT, graph="all")
        )
    for graph in profile.graphs:
        findings += _graph_findings(graph)
        times = [(kernel.duration_us or 0.0) * kernel.launches for kernel in graph.kernels]
        total = sum(times) or 1.0
        for kernel, time in zip(graph.kernels, times, strict=True):
            where = {"graph": graph.name, "kernel": kernel.name[:60], "weight": time / total}
            findings += _kernel_findings(kernel, profile.multiprocessors, where, missing)
    profile.limits = sorted(findings, key=lambda finding: -finding.weight)
    profile.missing = list(dict.fromkeys(missing))
    return profile


def _finding(
    limit: Limit, metric: str, value: float, threshold: float, unit: str = "", **more: Any
) -> Finding:
    """Make a finding; `more`: what else it has, such as `graph`, `kernel` and `weight`."""
    figures = {"limit": limit, "metric": metric, "value": value, "threshold": threshold, "unit": unit}
    return Finding(**{"advice": _ADVICE[limit], **figures, **more})


def _graph_findings(graph: GraphProfile) -> Iterator[Finding]:
    sure: dict[str, Any] = {"graph": graph.name, "weight": _SURE}
    likely: dict[str, Any] = {"graph": graph.name, "weight": _LIKELY}
    times = sorted(kernel.duration_us for kernel in graph.kernels if kernel.duration_us is not None)
    typical_us = times[len(times) // 2] if times and (graph.launches or 0) >= TINY_LAUNCHES else None
    share = max(0.0, 1.0 - graph.busy_us / graph.wall_us) if graph.wall_us and graph.busy_us else None
    if share is not None and share >= LAUNCH_SHARE:
        yield _finding("latency", "share of a call outside kernels", share, LAUNCH_SHARE, **sure)
    elif typical_us is not None and typical_us < TINY_US:
        launches = f"{graph.launches} launches, of typically"
        yield _finding("latency", launches, typical_us, TINY_US, "us", **sure)
    if graph.measured_us:
        issuing = (graph.issue_us or 0.0) * max(graph.launches or 0, 1)
        shares: list[tuple[Limit, str, float | None]] = [
            ("memory", "share of the time that moving inputs and outputs takes", graph.memory_us),
            ("compute", "share of the time that the FLOPs take at the peak", graph.compute_us),
            ("latency", "share of the time that issuing takes", issuing),
        ]
        for limit, metric, us in sorted(shares, key=lambda triple: -(triple[2] or 0.0)):
            if us is not None and us >= SHARE * graph.measured_us:
                yield _finding(limit, metric, us / graph.measured_us, SHARE, **likely)
    if graph.headroom is not None and PLAUSIBLE <= graph.headroom <= ROOFLINE:
        yield _finding("at_the_roofline", "time over the speed of light", graph.headroom, ROOFLINE, **likely)


def _kernel_findings(
    kernel: KernelProfile, multiprocessors: int | None, where: dict[str, Any], missing: list[str]
) -> Iterator[Finding]:
    """Yield what a kernel's figures show; counters that a rule lacks are added to `missing`."""
    if kernel.metrics:
        counters = kernel.metrics | ({"multiprocessors": multiprocessors} if multiprocessors else {})

        def holding(rules: Iterable[_Rule]) -> Iterator[Finding]:
            for limit, metric, figure, threshold, unit, is_least, advice in rules:
                try:
                    value = figure(counters)
                except KeyError as error:
                    missing.append(error.args[0])
                except ZeroDivisionError:
                    pass
                else:
                    if (value < threshold) if is_least else (value >= threshold):
                        own_advice = {"advice": advice} if advice else {}
                        yield _finding(limit, metric, value, threshold, unit, **own_advice, **where)

        findings = list(holding(_COUNTER_RULES))
        yield from findings or itertools.islice(holding(_QUIET_RULES), 1)
        yield from holding([_ROOFLINE_RULE])
    elif kernel.stack_bytes:
        yield _finding("spill", "local memory of a thread", kernel.stack_bytes, 0, "B", **where)
    if kernel.scalar_loops and not kernel.vector_loops:
        advice = "; ".join(kernel.missed[:2]) or "no loop became vector code"
        yield _finding("compute", "loops without vector code", kernel.scalar_loops, 1, advice=advice, **where)
