"""One record for every profile: what was measured of a candidate on a task, in three tiers.

free: what an evaluation and the compilers know. cheap: one traced run of the replay. deep: hardware counters.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Tier = Literal["free", "cheap", "deep"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Rule(_Record):
    """What a rule of Nsight Compute says of a kernel."""

    name: str
    text: str
    speedup_percent: float | None = None
    """NVIDIA's estimate of what following it gains; None: it gives none."""


class KernelProfile(_Record):
    """One kernel of a replay."""

    name: str
    launches: int = 1
    """In one call of the subgraph."""
    duration_us: float | None = None
    """Of one launch, by a tracer or by counters. A profiled time is no measurement of speed."""
    registers: int | None = None
    """Of a thread, from the compiler."""
    stack_bytes: int | None = None
    """Local memory of a thread, from the compiler: spilled registers, and arrays that are indexed."""
    shared_bytes: int | None = None
    """Shared memory of a block."""
    vector_loops: int | None = None
    """C++: loops that the compiler made vector code of."""
    scalar_loops: int | None = None
    """C++: loops that it did not, and in `missed` why."""
    missed: list[str] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict)
    """Hardware counters, by our names (nsight.METRICS)."""
    rules: list[Rule] = Field(default_factory=list)


class GraphProfile(_Record):
    """One subgraph."""

    name: str
    dtype: str = ""
    moved_bytes: int = 0
    """Of inputs and outputs, each once."""
    plan_bytes: int | None = None
    """What the plan's kernels, copies and fills move at most."""
    flops: int = 0
    """Of matrix products, convolutions and attention; other operators count nothing."""
    measured_us: float | None = None
    """A call, as the evaluation timed it."""
    light_us: float | None = None
    """Speed of light: the bytes at the device's bandwidth or the FLOPs at its peak, whichever is longer."""
    memory_us: float | None = None
    """Of it moving the bytes, doing the FLOPs, and what issuing one launch takes: """
    compute_us: float | None = None
    issue_us: float | None = None
    headroom: float | None = None
    """measured / (speed of light + what one launch takes)."""
    launches: int | None = None
    wall_us: float | None = None
    """A call of the replay, many in a row, without a profiler."""
    busy_us: float | None = None
    """Of it the time in kernels."""
    cache_misses: float | None = None
    """CPU: misses of the last level in a call."""
    kernels: list[KernelProfile] = Field(default_factory=list)


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
    """What could not be measured, a line each."""
    seconds: float = 0.0
