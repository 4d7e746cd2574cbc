"""An evaluation as plain data, the same for the agent, the search, the command line and notebooks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from passagent.evaluator.candidate import MANIFEST, Candidate

__all__ = [
    "GRAVITY", "MANIFEST", "Candidate", "Compiler", "Evaluation", "GraphResult", "KernelUse", "Mismatch",
    "Speedup", "Status", "Subject", "Violation", "Worst", "place",
]  # fmt: skip

Status = Literal[
    "ok",
    "mismatch",
    "load_error",
    "compile_error",
    "runtime_error",
    "wrong_result",
    "timeout",
    "out_of_memory",
    "refused",
    "infrastructure",
]
"""The status of a subgraph and of the whole. No fake score stands for a failure."""

GRAVITY: list[Status] = [
    "ok",
    "wrong_result",
    "mismatch",
    "runtime_error",
    "out_of_memory",
    "timeout",
    "compile_error",
    "load_error",
    "refused",
    "infrastructure",
]
"""From the lightest to the gravest: the status of the whole is the gravest of its subgraphs."""


EXACT_T = -5
"""The strictest t that counts in full for AS: a candidate that passes there loses almost nothing."""
INEXACT = 0.9
"""AS over the geometric mean of the speedups up to which a correct candidate is called inexact."""

Compiler = str
"""A subject in a candidate's place: `eager` itself (A/A), or what torch.compile makes of it
(compilers.py)."""


Subject = Candidate | Compiler
"""The subject of an evaluation."""


class Measured(BaseModel):
    """The figures of a refusal that rests on a measurement: another measurement may come out otherwise."""

    claimed: float
    """The candidate's figure."""
    seen: float
    """The evaluator's figure."""
    bound: float
    """The most that it may see where the claim is true."""
    unit: str


class Violation(BaseModel):
    """A broken integrity rule: which, where, and what to do instead."""

    rule: str
    file: str
    line: int
    """0 where no line is to blame."""
    message: str
    measured: Measured | None = None
    """The measurement that the refusal rests on; None: on what the candidate is or does, each time."""

    @property
    def place(self) -> str:
        """`FILE:LINE`, or the file alone."""
        return f"{self.file}:{self.line}" if self.line else self.file


class Mismatch(BaseModel):
    """The best attempt of a pattern that matched nowhere: how far it came and where it failed."""

    pass_name: str
    matched_nodes: int
    pattern_nodes: int
    pattern_node: str
    """The pattern's node that failed, printed as in the graph."""
    graph_node: str | None
    """The graph's node that it was held against; None if there is none of its kind."""
    reason: str
    """operator, target, attribute, arity, or a value that leaks out of the match, in words."""


class Speedup(BaseModel):
    """eager / compiled, by the estimator that `Evaluation.protocol` names."""

    e2e: float
    low: float | None = None
    """Lower end of the 95% bootstrap interval of `e2e`, over paired blocks."""
    high: float | None = None


def place(output: int, input: int | None) -> str:
    """Name in words what is judged: an output, or what a call leaves in an input."""
    return f"output {output}" if input is None else f"what is left in input {input}"


class Worst(BaseModel):
    """The element of an output that differs most, relative to what t = -5 allows."""

    output: int
    input: int | None = None
    """It is no output's: it was left so in this input, which eager writes into."""
    index: list[int]
    expected: float
    got: float
    passes_from_t: int | None = None
    """Smallest t at which the outputs of the call that it is of pass; None: at none."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return place(self.output, self.input)


class KernelUse(BaseModel):
    """A kernel of a candidate's plan on one subgraph, by what its compiler says."""

    name: str
    kind: str
    """triton, cuda or cpp."""
    launches: int = 1
    """In a call; of a kernel that is tuned, of the alternative that moves most."""
    registers: int | None = None
    """Registers of a thread. None: for the CPU, or no cuobjdump is here."""
    stack_bytes: int | None = None
    """Local memory of a thread: registers that were spilled, and arrays."""
    shared_bytes: int | None = None
    """Shared memory of a block, static and asked for at the launch."""


class GraphResult(BaseModel):
    """One subgraph of the task."""

    name: str
    dtype: str
    status: Status
    error: str | None = None
    """Message of the failure, for people and for the agent; no traceback of passagent's own."""
    matches: int = 0
    """Replacements made."""
    applied: list[str] = Field(default_factory=list)
    """Name of the pass behind each replacement, in order."""
    mismatches: list[Mismatch] = Field(default_factory=list)
    narrowed: list[str] = Field(default_factory=list)
    """Inputs that no input set takes beyond what was recorded, and why."""
    passes_from_t: int | None = None
    """Smallest t in -10..1 at which every output passes; None: at none."""
    max_abs_diff: float | None = None
    worst: Worst | None = None
    float64_error: float | None = None
    """The error of the outputs against eager computed in float64, relative to their size: see
    precision.Precision. None where eager does not run in float64."""
    eager_float64_error: float | None = None
    """The error of eager's own outputs."""
    speedup: Speedup | None = None
    vs_reference: Speedup | None = None
    """Inductor / compiled, called in the same way, with `reference: inductor`."""
    eager_ms: float | None = None
    compiled_ms: float | None = None
    """`eager_ms / speedup.e2e`: both are by the estimator of the speedup."""
    eager_samples_ms: list[float] = Field(default_factory=list)
    """To four digits, as are those of the other side."""
    compiled_samples_ms: list[float] = Field(default_factory=list)
    trials: int = 0
    blocks: list[int] = Field(default_factory=list)
    """Calls of each block: the two sides' samples are paired block by block."""
    pairs: list[int] = Field(default_factory=list)
    """Blocks that each pair of workers made; their measurements are averaged."""
    unstable: bool = False
    """The interval of the speedup stayed wider than asked for after every re-measurement."""
    nodes_before: int = 0
    nodes_after: int = 0
    """Operators of the captured graph, and of the rewritten one."""
    left: list[str] = Field(default_factory=list)
    """The operators of the rewritten graph in order; a replacement by its pass's name."""
    moved_bytes: int = 0
    """Bytes of all inputs and outputs, outputs that are views counted once, of slices what is read: what any
    candidate must move. An embedding's table counts whole, so the figure can be too high there."""
    flops: int | None = None
    """FLOPs of the graph's matrix products, convolutions and attention; None where torch cannot tell."""
    plan_bytes: int | None = None
    """The most bytes that the plan's kernels, copies and fills move in a call; None without a plan."""
    launches: int | None = None
    """Launches of kernels, copies and fills, in a call."""
    kernels: list[KernelUse] = Field(default_factory=list)
    """The plan's kernels."""

    @property
    def worst_element(self) -> str:
        """`output 1 at [0, 3]: expected 1.5, got 1.25; it passes from t = 0 on`; empty where none is kept."""
        worst, level = self.worst, self.passes_from_t
        if level is None and worst is not None:
            level = worst.passes_from_t
        passes = "it passes at no t" if level is None else f"it passes from t = {level} on"
        if worst is None:
            return "" if level is None else passes
        return f"{worst.place} at {worst.index}: expected {worst.expected:.6g}, got {worst.got:.6g}; {passes}"


class Evaluation(BaseModel):
    """A candidate judged on a task."""

    task: str
    candidate: str
    """Candidate.key, or the Compiler's name."""
    device: str
    dispatch: str
    reference: str = "eager"
    """The reference of the timing (EvaluatorConfig.reference)."""
    timing: Literal["wall", "none"]
    """`none`: nothing got as far."""
    status: Status
    unrecorded: bool = False
    """Its host code gave no plan, or kernels that do not build: nothing of it was run."""
    as_score: float | None
    """None on infrastructure faults."""
    es: dict[str, float] | None
    graphs: list[GraphResult]
    violations: list[Violation] = Field(default_factory=list)
    error: str | None = None
    fast_1: float | None = None
    """Share of subgraphs that are correct and at least as fast as eager."""
    gmean_speedup: float | None = None
    """Over the correct subgraphs."""
    gmean_vs_reference: float | None = None
    """The geometric mean of their `vs_reference`."""
    as_low: float | None = None
    """AS with every speedup at the lower end of its interval, and at the upper: `as_high`. Where it is pooled
    (`protocol["rounds"]`), its 95% interval over the rounds."""
    as_high: float | None = None
    bar: float | None = None
    """The AS that a search had when it was measured, more coarsely for that; None: in full."""
    stopped_early: str | None = None
    """Why it was timed less than others: its AS cannot reach that of a candidate that is there already."""
    plans: str | None = None
    """The plans that were recorded and measured: Candidate.key of its files (plan/artefact.py)."""
    plan_files: dict[str, str] = Field(default_factory=dict, exclude=True)
    """These files, of a correct candidate that was just evaluated; a store keeps them by `plans`."""
    edited: list[str] = Field(default_factory=list)
    """Files of plans that are not as they were recorded: whoever evaluates changed them."""
    protections: dict[str, str] = Field(default_factory=dict)
    """Layers of the worker's sandbox: name to `on` or `off: reason`."""
    device_state: dict[str, Any] = Field(default_factory=dict)
    """Clocks, temperature, throttling (NVML) before and after the measurement, where they can be read."""
    protocol: dict[str, Any] = Field(default_factory=dict)
    """warm-ups, trials, b, p: what the numbers depend on."""
    environment: dict[str, Any] = Field(default_factory=dict)
    """Machine, device name, driver and library versions."""
    evaluator_version: str
    seconds: float = 0.0

    def inexact(self) -> list[GraphResult]:
        """The subgraphs for which AS is far below the geometric mean of the speedups, the least exact first.

        They are correct, but fail at a t that counts in full.
        """
        if self.status != "ok" or self.as_score is None or self.gmean_speedup is None:
            return []
        if self.as_score > INEXACT * self.gmean_speedup:
            return []
        levels = [(graph.passes_from_t, graph) for graph in self.graphs]
        loose = [(level, graph) for level, graph in levels if level is not None and level > EXACT_T]
        return [graph for _, graph in sorted(loose, key=lambda pair: -pair[0])]

    @property
    def rests_on_measurement(self) -> bool:
        """Tell whether it is a refusal that another measurement may not repeat: it is never reused."""
        return any(violation.measured is not None for violation in self.violations)
