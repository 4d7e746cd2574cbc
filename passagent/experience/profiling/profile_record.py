"""One record for every profile: what was measured of a candidate on a task, in three tiers.

free: what an evaluation and the compilers know. cheap: one traced run of the replay. deep: hardware counters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.result import Evaluation, GraphResult, KernelUse
from passagent.kernels.build import Signature
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.kernels.vector_report import vector_report
from passagent.plan.model import NativeKernel, Plan

Tier = Literal["free", "cheap", "deep"]
Limit = Literal[
    "memory", "compute", "tensor", "latency", "occupancy", "spill", "divergence", "at_the_roofline", "inexact"
]

MOST_LINES = 12
"""The most lines of a diagnosis that a model gets."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KernelProfile(KernelUse):
    """One kernel of a replay, and what was measured of it."""

    model_config = ConfigDict(extra="forbid")

    kind: str = ""
    """triton, cuda or cpp; empty for what a tracer saw."""
    duration_us: float | None = None
    """The time of one launch, by a tracer or by counters, which is no measurement of speed."""
    vector_loops: int | None = None
    """C++: loops that the compiler made vector code of."""
    scalar_loops: int | None = None
    """C++: loops that it did not, and in `missed` why."""
    missed: list[str] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict)
    """Hardware counters, by our names (nsight.METRICS)."""

    def line(self) -> str:
        """Return the kernel in words."""
        words = [f"{self.launches} x"] if self.launches > 1 else []
        words += [f"{self.duration_us:,.1f} us"] if self.duration_us is not None else []
        words += [f"{self.registers} registers"] if self.registers is not None else []
        words += [f"{self.stack_bytes} B local"] if self.stack_bytes else []
        words += [f"{self.shared_bytes} B shared"] if self.shared_bytes else []
        if self.vector_loops is not None:
            words.append(f"{self.vector_loops} vector loops, {self.scalar_loops} scalar")
        return f"{self.name[:50]}: {', '.join(words) or 'nothing known'}"


class GraphProfile(_Record):
    """One subgraph."""

    name: str
    dtype: str = ""
    moved_bytes: int = 0
    """The bytes of inputs and outputs, each once."""
    flops: int = 0
    """FLOPs of matrix products, convolutions and attention; other operators count nothing."""
    measured_us: float | None = None
    """A call, as the evaluation timed it."""
    light_us: float | None = None
    """Speed of light: the bytes at the device's bandwidth or the FLOPs at its peak, whichever is longer."""
    memory_us: float | None = None
    """The parts of it for moving the bytes, for the FLOPs, and for issuing one launch."""
    compute_us: float | None = None
    issue_us: float | None = None
    headroom: float | None = None
    """measured / (speed of light + what one launch takes)."""
    launches: int | None = None
    wall_us: float | None = None
    """A call of the replay, many in a row, without a profiler."""
    busy_us: float | None = None
    """The part of it in kernels."""
    kernels: list[KernelProfile] = Field(default_factory=list)

    def line(self) -> str:
        """Return the subgraph in words."""
        words = [f"{self.moved_bytes / 1e6:,.2f} MB"]
        words += [f"{self.flops / 1e6:,.1f} MFLOP"] if self.flops else []
        words += [f"{self.launches} launches"] if self.launches is not None else []
        words += [f"{self.measured_us:,.1f} us"] if self.measured_us else []
        words += [f"speed of light {self.light_us:,.1f} us"] if self.light_us is not None else []
        words += [f"headroom {self.headroom:.2f}x"] if self.headroom else []
        if self.wall_us and self.busy_us is not None:
            words.append(f"{self.busy_us:,.1f} of {self.wall_us:,.1f} us in kernels")
        return f"  {self.name} ({self.dtype}): {', '.join(words)}"


class Finding(_Record):
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
        """Return the finding in words."""
        where = f"{self.graph}, {self.kernel}" if self.kernel else self.graph
        unit = f" {self.unit}" if self.unit else ""
        return (
            f"{self.limit.replace('_', ' ')} ({where}): {self.metric} {self.value:.3g}{unit}, "
            f"threshold {self.threshold:.3g}; {self.advice}"
        )


class Profile(_Record):
    """A candidate on a task."""

    format: Literal["profile/1"] = "profile/1"
    tier: Tier
    task: str = ""
    candidate: str = ""
    device: str
    device_model: str = ""
    multiprocessors: int | None = None
    bandwidth: float | None = None
    """Bytes/s that a copy reaches here, at its best size."""
    peak_flops: dict[str, float] = Field(default_factory=dict)
    """FLOP/s that a matrix product reaches here, by dtype."""
    exactness: float | None = None
    """AS over the geometric mean of the speedups; 1 where nothing is lost for rounding."""
    graphs: list[GraphProfile]
    notes: list[str] = Field(default_factory=list)
    """Notes on what could not be measured, a line each."""
    seconds: float = 0.0
    limits: list[Finding] = Field(default_factory=list)
    """The limits, the most important first (evidence.examine); if it is empty, `missing` may say why."""
    missing: list[str] = Field(default_factory=list)
    """Figures that a rule needed."""

    @property
    def main(self) -> Limit | None:
        """Return what limits most; None: abstained."""
        return self.limits[0].limit if self.limits else None

    def as_json(self) -> str:
        """The record with its evidence, on one line."""
        keys = {"limits", "missing"}
        evidence = self.model_dump(include=keys) | {"main": self.main}
        return json.dumps(self.model_dump(exclude=keys) | {"evidence": evidence})

    def text(self) -> str:
        """At most MOST_LINES lines for an author."""
        lines = [finding.line() for finding in self.limits[:8]] or ["no limit is shown by what was measured"]
        if self.missing:
            lines.append(f"not measured: {', '.join(self.missing[:8])}")
        return "\n".join([*lines, *self.notes][:MOST_LINES])

    def report(self) -> str:
        """Each subgraph in a line, its kernels beneath it, and what limits the pass, for people."""
        lines = [f"{self.task} on {self.device_model or self.device}, tier {self.tier}"]
        if self.bandwidth:
            peaks = ", ".join(f"{dtype} {rate / 1e9:,.0f}" for dtype, rate in self.peak_flops.items())
            copies = f"copies {self.bandwidth / 1e9:,.1f} GB/s"
            lines.append(f"measured here: {copies}; products {peaks} GFLOP/s")
        for graph in self.graphs:
            lines += [graph.line(), *(f"    {kernel.line()}" for kernel in graph.kernels)]
        lines += ["what limits it:", *(f"  {line}" for line in self.text().splitlines())]
        return "\n".join(lines)


def free_profile(evaluation: Evaluation, machine: Machine, device_model: str = "") -> Profile:
    """The record of an evaluation."""
    issue_s = 0.0 if evaluation.dispatch == "graph" else machine.issue_s  # issuing is not in the times
    score, mean = evaluation.as_score, evaluation.gmean_speedup
    return Profile(
        tier="free",
        task=evaluation.task,
        candidate=evaluation.candidate,
        device=evaluation.device,
        device_model=device_model,
        bandwidth=machine.best_bandwidth,
        peak_flops=dict(machine.flops),
        exactness=score / mean if evaluation.status == "ok" and score is not None and mean else None,
        graphs=[_graph(graph, machine, issue_s) for graph in evaluation.graphs],
    )


def _graph(graph: GraphResult, machine: Machine, issue_s: float) -> GraphProfile:
    memory_s = machine.light_s(graph.moved_bytes, 0, graph.dtype)
    compute_s = machine.light_s(0, graph.flops or 0, graph.dtype)
    light_s = max(memory_s, compute_s)
    return GraphProfile(
        name=graph.name,
        dtype=graph.dtype,
        moved_bytes=graph.moved_bytes,
        flops=graph.flops or 0,
        measured_us=graph.compiled_ms and graph.compiled_ms * 1e3,
        light_us=light_s * 1e6,
        memory_us=memory_s * 1e6,
        compute_us=compute_s * 1e6,
        issue_us=issue_s * 1e6,
        headroom=graph.compiled_ms * 1e-3 / (light_s + issue_s) if graph.compiled_ms else None,
        launches=graph.launches,
        kernels=[KernelProfile(**kernel.model_dump()) for kernel in graph.kernels],
    )


def add_vector_reports(profile: Profile, plans: Iterable[Plan]) -> None:
    """Put what GCC says of the loops of the C++ kernels in `plans` beside each kernel of that name."""
    reports = {}
    for kernel in (kernel for plan in plans for kernel in plan.kernels.values()):
        if isinstance(kernel, NativeKernel) and kernel.kind == "cpp" and kernel.entry not in reports:
            signature = Signature(tuple(parameter.type for parameter in kernel.signature))
            try:
                reports[kernel.entry] = vector_report(kernel.text, kernel.entry, signature)
            except (KernelRefused, KernelBuildError) as error:
                profile.notes.append(f"{kernel.entry}: no vectorisation report: {str(error).splitlines()[0]}")
    for graph in profile.graphs:
        for entry in graph.kernels:
            if entry.name in reports:
                entry.vector_loops, entry.scalar_loops, missed = reports[entry.name]
                entry.missed = missed[:5]
