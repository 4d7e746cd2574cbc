"""From an evaluation to a diagnosis: the error of a wrong candidate, the limiter of a right one.

The signals are light: the bytes that inputs and outputs must move against the machine's bandwidth, the
operators left against the cost of issuing one, and the measured time. No profiler is involved, so a
limiter is a reading of shares, not a proof; the text gives the numbers behind it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, get_args

from passagent.evaluator.hardware.machine import Machine
from passagent.evaluator.result import EXACT_T, Evaluation, GraphResult, Status
from passagent.experience.failure import first_error

Limiter = Literal["memory_bound", "latency_bound", "instruction_bound"]
LIMITERS: tuple[str, ...] = get_args(Limiter)
_FAILURES = tuple(status for status in get_args(Status) if status != "ok")
LABELS: tuple[str, ...] = ("start", "untimed", "inexact", *LIMITERS, *_FAILURES)
"""Labels of a diagnosis. `start`: there is no candidate yet; `untimed`: correct, but not timed; `inexact`:
correct, but AS is far below what the speedups alone would give."""

PLAUSIBLE = 0.7
"""A headroom below this says that the rates were measured on a busy machine, not that a pass is so fast."""
SHARE = 0.4
"""A limiter must explain this share of the time; where none does, it is the instructions."""


@dataclass(frozen=True)
class GraphDiagnosis:
    """One correct and timed subgraph."""

    name: str
    limiter: Limiter
    memory_share: float
    """Time to move the bytes at full bandwidth / measured time."""
    latency_share: float
    """Time to issue the operators that are left / measured time."""
    speedup: float
    headroom: float
    """Measured time / (speed of light + issuing one launch): 1 where nothing is left to gain."""


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a candidate: what limits it."""

    label: str
    """One of LABELS: hints are retrieved by it."""
    text: str
    """A paragraph for the author."""
    graphs: tuple[GraphDiagnosis, ...] = ()

    @property
    def headroom(self) -> float | None:
        """Over the timed subgraphs, the geometric mean of their headroom; None where one is not plausible."""
        if not self.graphs or min(graph.headroom for graph in self.graphs) < PLAUSIBLE:
            return None
        return math.exp(sum(math.log(max(graph.headroom, 1e-9)) for graph in self.graphs) / len(self.graphs))

    def as_json(self) -> str:
        """The JSON that is stored with a node; its graphs are the evaluation's timed ones, in order."""
        graphs = [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
            for figures in map(vars, self.graphs)
        ]
        headroom = self.headroom and round(self.headroom, 3)
        return json.dumps(vars(self) | {"graphs": graphs, "headroom": headroom})


START = Diagnosis("start", "No candidate has been evaluated yet.")


def diagnose(evaluation: Evaluation, machine: Machine) -> Diagnosis:
    """The diagnosis of `evaluation`."""
    if evaluation.status != "ok":
        failed = sum(graph.status != "ok" for graph in evaluation.graphs)
        where = f"{failed} of {len(evaluation.graphs)} subgraphs fail: " if failed else ""
        return Diagnosis(evaluation.status, where + first_error(evaluation, {}))
    timed = [g for g in evaluation.graphs if g.speedup is not None and g.compiled_ms]
    if loose := evaluation.inexact():
        return Diagnosis("inexact", _inexactness(evaluation, loose))
    if evaluation.dispatch == "graph":  # issuing is not in the times
        machine = replace(machine, issue_s=0.0)
    graphs = tuple(_limiter(graph, machine) for graph in timed)
    if not graphs:
        return Diagnosis("untimed", "Every subgraph is correct; nothing was timed.")
    counts = Counter(graph.limiter for graph in graphs)
    worst, result = min(zip(graphs, timed, strict=True), key=lambda pair: pair[0].speedup)
    # among limiters that are equally frequent, the one of the slowest subgraph
    label = max(counts, key=lambda limiter: (counts[limiter], limiter == worst.limiter))
    name, ms = _NAMES.get(label, label.replace("_", "-")), result.compiled_ms or 0.0
    lines = [f"Correct on all subgraphs; {name} on {counts[label]} of {len(graphs)}: {_MEANING[label]}."]
    if slow := sum(graph.speedup < 1 for graph in graphs):
        lines.append(f"{slow} of {len(graphs)} subgraphs are slower than eager.")
    lines.append(
        f"The least gain is on {worst.name} ({result.dtype}): {worst.speedup:.2f}x, "
        f"{ms:.4f} ms against {result.eager_ms or 0:.4f} ms; {result.nodes_before} operators became "
        f"{result.nodes_after}; moving its {result.moved_bytes / 1e6:.2f} MB takes "
        f"{worst.memory_share * ms:.4f} ms ({worst.memory_share:.0%} of the time), issuing takes "
        f"{worst.latency_share * ms:.4f} ms ({worst.latency_share:.0%}). Its time is {worst.headroom:.2f} "
        f"times what the speed of light and one launch take."
    )
    if any(graph.unstable for graph in timed):
        lines.append("Some timings were unstable; do not read small differences into them.")
    return Diagnosis(label, " ".join(lines), graphs)


def _limiter(graph: GraphResult, machine: Machine) -> GraphDiagnosis:
    assert graph.compiled_ms is not None
    assert graph.speedup is not None
    seconds = graph.compiled_ms * 1e-3
    memory = graph.moved_bytes / machine.bandwidth(graph.moved_bytes) / seconds
    latency = max(graph.nodes_after, 1) * machine.issue_s / seconds
    limiter: Limiter = "instruction_bound"
    if max(memory, latency) >= SHARE:
        limiter = "memory_bound" if memory >= latency else "latency_bound"
    light = machine.light_s(graph.moved_bytes, graph.flops or 0, graph.dtype) + machine.issue_s
    return GraphDiagnosis(graph.name, limiter, memory, latency, graph.speedup.e2e, seconds / light)


ADVICE = {
    "memory": "only fewer bytes help: fuse, read each input once, keep the dtype small",
    "latency": "fewer operators, launches, allocations and copies help; faster arithmetic does not",
}
"""Advice for a limit that a diagnosis and a profile (profiling/evidence.py) can both show."""
_MEANING = {
    "memory_bound": f"the time is close to what moving the inputs and outputs takes; {ADVICE['memory']}",
    "latency_bound": f"the time is mostly that of issuing operators and kernels; {ADVICE['latency']}",
    "instruction_bound": "the code inside the kernel, its access pattern, its parallelism, or an operator "
    "that was left as it is decides; no counter was read that says which",
}
_NAMES = {"instruction_bound": "neither memory traffic nor issuing explains the time"}
"""Descriptions of limiters that no measurement shows directly."""


def _inexactness(evaluation: Evaluation, loose: list[GraphResult]) -> str:
    """Where AS is lost: subgraphs, the t at which they fail, and the operator whose rounding shows."""
    where = "; ".join(f"{g.name} ({g.dtype}) fails at t = {(g.passes_from_t or 0) - 1}" for g in loose[:3])
    more = f"; so do {len(loose) - 3} more at t = {EXACT_T} or looser" if len(loose) > 3 else ""
    text = (
        f"Correct on all subgraphs, but inexact: AS is {evaluation.as_score:.3f}, the geometric mean of the "
        f"speedups {evaluation.gmean_speedup:.3f}. {where}{more}. A t that fails scores as wrong."
    )
    if not loose[0].roundings:
        return f"{text} Round where eager stores a result, and use no approximations."
    operators = ", ".join(loose[0].roundings[:3])
    return (
        f"{text} On {loose[0].name} eager's rounding shows after {operators}: leaving it out at one of them "
        f"alone makes outputs fail at t = {EXACT_T}. Round there as eager does."
    )
