"""From what happened to what it is called: statuses, violations, and the Evaluation as a whole."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from passagent.config import EvaluatorConfig
from passagent.evaluator import score
from passagent.evaluator.baseline import SETS
from passagent.evaluator.environment import describe, evaluator_version, worker_threads
from passagent.evaluator.result import (
    GRAVITY,
    Candidate,
    Evaluation,
    GraphResult,
    Speedup,
    Status,
    Violation,
)
from passagent.evaluator.timing import Timing
from passagent.tasks.reader import Subgraph, Task

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


class Refused(Exception):
    """The candidate broke an integrity rule."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__(violations[0].message)
        self.violations = violations


class Failed(Exception):
    """The candidate failed on a subgraph, or as a whole when it was loaded."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def raise_for(error: dict[str, Any]) -> None:
    """Raise Refused or Failed for a worker's explanation of an exception."""
    message = str(error.get("message", ""))[:4000]
    if "violation" in error:
        raise Refused([Violation.model_validate(error["violation"])])
    kind = error.get("kind")
    known = kind in get_args(Status) and kind not in ("ok", "infrastructure")
    raise Failed(kind if known else "runtime_error", message)  # type: ignore[arg-type]


def blank(subgraph: Subgraph, status: Status, error: str | None = None) -> GraphResult:
    """A subgraph's result before anything was measured."""
    return GraphResult(name=subgraph.name, dtype=subgraph.dtype, status=status, error=error)


def fill_times(result: GraphResult, timing: Timing) -> None:
    """Medians, ratios and raw samples of both sides."""
    eager, compiled = timing.eager, timing.compiled
    eager_ns, compiled_ns = float(np.median(eager.e2e)), max(float(np.median(compiled.e2e)), 1.0)
    device = None
    if eager.device and compiled.device:
        device = float(np.median(eager.device)) / max(float(np.median(compiled.device)), 1.0)
    result.speedup = Speedup(e2e=eager_ns / compiled_ns, device=device)
    result.eager_ms, result.compiled_ms = eager_ns / 1e6, compiled_ns / 1e6
    result.eager_samples_ms = [n / 1e6 for n in eager.e2e]
    result.compiled_samples_ms = [n / 1e6 for n in compiled.e2e]
    result.trials, result.unstable = len(compiled.e2e), timing.unstable


def graph_score(graph: GraphResult) -> score.GraphScore:
    """A subgraph's result as the score sees it."""
    speedup = graph.speedup.e2e if graph.speedup else None
    failure = _FAILURES.get(graph.status)
    return score.GraphScore(speedup=speedup, passes_from_t=graph.passes_from_t, failure=failure)


def conclude(
    task: Task,
    candidate: Candidate,
    config: EvaluatorConfig,
    graphs: list[GraphResult],
    violations: list[Violation],
    *,
    interpreter: bool,
    seconds: float,
) -> Evaluation:
    """The Evaluation of a task from its subgraphs' results."""
    scores = [graph_score(graph) for graph in graphs]
    status = max((graph.status for graph in graphs), key=GRAVITY.index)
    by_t = None
    if not interpreter:
        by_t = {t: score.es(scores, t, config.b, config.p) for t in score.T_RANGE}
    correct = [graph.speedup.e2e if graph.status == "ok" and graph.speedup else None for graph in graphs]
    right = [s for s in correct if s is not None]
    timed = any(graph.speedup for graph in graphs)
    return Evaluation(
        task=task.name,
        candidate=candidate.key,
        device=config.device,
        dispatch=config.dispatch,
        timing="interpreter" if interpreter else "wall" if timed else "none",
        status=status,
        as_score=score.aggregate(by_t) if by_t else None,
        es={str(t): value for t, value in by_t.items()} if by_t else None,
        graphs=graphs,
        violations=violations,
        error=next((graph.error for graph in graphs if graph.status == status and graph.error), None),
        fast_1=score.fast_1(correct) if by_t else None,
        gmean_speedup=score.geometric_mean(right) if right else None,
        protocol={
            "warmups": config.warmups,
            "trials": config.trials,
            "budget_s": config.budget_s,
            "order": "alternating blocks, compiled first",
            "l2": "warm",
            "malloc": "freed memory is kept",
            "b": config.b,
            "p": config.p,
            "input_sets": SETS,
            "strict_t": score.STRICT_T,
        },
        environment=describe(config.device, worker_threads(config.threads)),
        evaluator_version=evaluator_version(),
        seconds=round(seconds, 3),
    )
