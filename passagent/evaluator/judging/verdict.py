"""From what happened to what it is called: statuses, violations, and the Evaluation as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from passagent.config import EvaluatorConfig
from passagent.evaluator import score
from passagent.evaluator.compilers import is_compiled
from passagent.evaluator.result import (
    GRAVITY,
    Candidate,
    Evaluation,
    GraphResult,
    Mismatch,
    Speedup,
    Status,
    Subject,
    Violation,
)
from passagent.evaluator.runner import hostless
from passagent.evaluator.runner.worker_messages import Error, ReportedViolation
from passagent.evaluator.score import SETS
from passagent.evaluator.sizes import ERROR, MESSAGE, plain, shortened
from passagent.evaluator.timing import estimate
from passagent.evaluator.timing.estimate import MOST_TRIALS, TRIALS
from passagent.evaluator.timing.timing import WARMUPS, Timing
from passagent.sandbox.environment import describe, evaluator_version, worker_threads
from passagent.tasks.reader import Subgraph, Task, library_rule

REFUSED = "broke an integrity rule; see violations"
_FAILURES: dict[str, score.Failure] = {
    "mismatch": "compilation",
    "load_error": "compilation",
    "compile_error": "compilation",
    "runtime_error": "runtime",
    "timeout": "runtime",
    "out_of_memory": "runtime",
    "refused": "integrity",
    "wrong_result": "accuracy",
}


def violation_of(reported: ReportedViolation) -> Violation:
    """Make a violation of a worker's report, its text made plain and cut. A worker measures nothing."""
    message, file = plain(shortened(reported.message, MESSAGE)), plain(reported.file[:200])
    return Violation(rule=plain(reported.rule[:80]), file=file, line=reported.line, message=message)


class Refused(Exception):
    """The candidate broke an integrity rule."""

    def __init__(self, violations: list[Violation], unmatched: dict[str, Failed] | None = None) -> None:
        """`unmatched`: by their names, subgraphs that no pass matches, where nothing was run."""
        super().__init__(violations[0].message)
        self.violations, self.unmatched = violations, unmatched or {}

    def are_in(self, result: GraphResult) -> None:
        """The file of violations that name none: the first pass that was applied to the subgraph."""
        first = f"{result.applied[0]}.py" if result.applied else ""
        for violation in self.violations:
            violation.file = violation.file or first


class Failed(Exception):
    """The candidate failed on a subgraph, or as a whole when it was loaded."""

    def __init__(self, status: Status, message: str, mismatches: Sequence[Mismatch] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.mismatches = status, message, list(mismatches)


def raise_for(error: Error) -> None:
    """Raise Failed for a worker's explanation of an exception."""
    message, kind = plain(error.message[:ERROR]), error.kind
    is_status = kind in get_args(Status) and kind not in ("ok", "infrastructure")
    raise Failed(kind if is_status else "runtime_error", message)  # type: ignore[arg-type]


def blank(subgraph: Subgraph, status: Status, error: str | None = None) -> GraphResult:
    """A subgraph's result before anything was measured."""
    return GraphResult(name=subgraph.name, dtype=subgraph.dtype, status=status, error=error)


def speedup_of(timing: Timing) -> Speedup:
    """The speedup that was measured."""
    return Speedup(e2e=timing.speedup, low=timing.low, high=timing.high)


def fill_times(result: GraphResult, timing: Timing) -> None:
    """Speedup, interval, times and the raw samples of both sides."""
    eager, compiled = timing.eager, timing.compiled
    result.speedup = speedup_of(timing)
    result.eager_ms = timing.eager_ns / 1e6
    result.compiled_ms = result.eager_ms / timing.speedup
    result.eager_samples_ms = [_shown(n) for n in eager.e2e]
    result.compiled_samples_ms = [_shown(n) for n in compiled.e2e]
    result.blocks = [len(block) for block in compiled.blocks]
    result.pairs = timing.pairs
    result.trials, result.unstable = len(compiled.e2e), timing.unstable


def _shown(ns: float) -> float:
    """A sample in ms, to four digits: its noise is a hundred times that."""
    return float(f"{ns / 1e6:.4g}")


def graph_score(graph: GraphResult, end: Literal["e2e", "low", "high"] = "e2e") -> score.GraphScore:
    """A subgraph's result as the score sees it: at its measured speedup, or at an end of the interval."""
    speedup = getattr(graph.speedup, end) if graph.speedup else None
    failure = _FAILURES.get(graph.status)
    return score.GraphScore(speedup=speedup, passes_from_t=graph.passes_from_t, failure=failure)


def as_end(graphs: list[GraphResult], end: Literal["low", "high"]) -> float:
    """AS with every speedup at that end of its interval."""
    return score.aggregate(_es(graphs, end))


@dataclass(frozen=True)
class Findings:
    """The results of a task's subgraphs, and how they came about."""

    graphs: list[GraphResult]
    violations: list[Violation]
    protections: dict[str, str] = field(default_factory=dict)


def conclude(task: Task, subject: Subject, config: EvaluatorConfig, findings: Findings) -> Evaluation:
    """The Evaluation of a task from its subgraphs' results."""
    graphs = findings.graphs
    status = max((graph.status for graph in graphs), key=GRAVITY.index)
    es = _es(graphs, "e2e")
    timed = any(graph.speedup for graph in graphs)
    correct = [graph.speedup.e2e if graph.status == "ok" and graph.speedup else None for graph in graphs]
    right = [s for s in correct if s is not None]
    vs_reference = [graph.vs_reference.e2e for graph in graphs if graph.status == "ok" and graph.vs_reference]
    return Evaluation(
        task=task.name,
        candidate=subject.key if isinstance(subject, Candidate) else subject,
        device=config.device,
        dispatch="dynamo" if is_compiled(subject) and config.dispatch != "graph" else config.dispatch,
        reference=config.reference,
        timing="wall" if timed else "none",
        status=status,
        as_score=score.aggregate(es),
        as_low=as_end(graphs, "low") if timed else None,
        as_high=as_end(graphs, "high") if timed else None,
        es={str(t): value for t, value in es.items()},
        graphs=graphs,
        violations=findings.violations,
        error=next((graph.error for graph in graphs if graph.status == status and graph.error), None),
        fast_1=score.fast_1(correct),
        gmean_speedup=score.geometric_mean(right) if right else None,
        gmean_vs_reference=score.geometric_mean(vs_reference) if vs_reference else None,
        protections=findings.protections,
        protocol={
            "warmups": WARMUPS,
            "trials": TRIALS,
            "max_trials": MOST_TRIALS,
            "budget_s": config.budget_s,
            "order": "both sides in turn",
            "pairs_of_workers": max((len(graph.pairs) for graph in graphs), default=0),
            "values": "fresh for every call",
            "host": hostless.protocol(config.dispatch, config.device),
            "reference": config.reference,
            "l2": "warm: inputs are written just before the call",
            "estimator": estimate.NAME,
            "interval": "bootstrap over pairs of blocks, 95%",
            "malloc": "freed memory is kept",
            "b": score.B,
            "p": score.P,
            "input_sets": SETS,
            "library": library_rule(config.library, task.subgraphs),
            "special_values": config.special_values,
            "strict_t": score.STRICT_T,
        },
        environment=describe(config.device, worker_threads(config.threads)),
        evaluator_version=evaluator_version(),
    )


def _es(graphs: list[GraphResult], end: Literal["e2e", "low", "high"]) -> dict[int, float]:
    scores = [graph_score(graph, end) for graph in graphs]
    return {t: score.es(scores, t) for t in score.T_RANGE}


def why_beaten(graphs: list[GraphResult], bar: float | None, reference: str) -> str | None:
    """In words, if the AS stays under the bar with every speedup at the upper end of its interval.

    It is not timed beside `reference`, a compiler, then.
    """
    if bar is None or (most := as_end(graphs, "high")) >= bar:
        return None
    return f"not timed beside {reference}: its AS, at most {most:.3f}, is under {bar:.3f}"


def refuse_all(graphs: list[GraphResult]) -> None:
    """A candidate that breaks a rule on one subgraph is refused on all of them."""
    for result in graphs:
        earlier = f"; beside that, {result.status}: {result.error}" if result.error else ""
        result.status, result.error = "refused", REFUSED + earlier
        result.speedup = result.vs_reference = None


def evaluate_refused(
    task: Task,
    candidate: Candidate,
    config: EvaluatorConfig,
    violations: list[Violation],
    unmatched: Mapping[str, Failed] = {},
) -> Evaluation:
    """A failure at every t on every subgraph of `task`, for `violations` of the rules."""
    mismatches = {name: failure.mismatches for name, failure in unmatched.items()}
    failures = {s.name: Failed("refused", REFUSED, mismatches.get(s.name, ())) for s in task.subgraphs}
    return evaluate_failed(task, candidate, config, failures, violations)


def evaluate_failed(
    task: Task,
    candidate: Candidate,
    config: EvaluatorConfig,
    failures: dict[str, Failed],
    violations: Sequence[Violation] = (),
) -> Evaluation:
    """The evaluation of a candidate that failed everywhere, for reasons by the names of the subgraphs."""
    pairs = [(subgraph, failures[subgraph.name]) for subgraph in task.subgraphs]
    graphs = [blank(subgraph, failure.status, failure.message) for subgraph, failure in pairs]
    for graph, (_, failure) in zip(graphs, pairs, strict=True):
        graph.mismatches = failure.mismatches
    evaluation = conclude(task, candidate, config, Findings(graphs, list(violations)))
    evaluation.unrecorded = True
    return evaluation
