"""The evaluation of a candidate that gives no plan: known before anything of it is built or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging.verdict import REFUSED, Failed, Findings, blank, conclude
from passagent.evaluator.result import Candidate, Evaluation, Violation
from passagent.tasks.reader import Task


def refused(
    task: Task,
    candidate: Candidate,
    config: EvaluatorConfig,
    violations: list[Violation],
    unmatched: Mapping[str, Failed] = {},
) -> Evaluation:
    """A failure at every t on every subgraph of `task`, for `violations` of the rules."""
    mismatches = {name: failure.mismatches for name, failure in unmatched.items()}
    failures = {s.name: Failed("refused", REFUSED, mismatches.get(s.name, ())) for s in task.subgraphs}
    return failed(task, candidate, config, failures, violations)


def failed(
    task: Task,
    candidate: Candidate,
    config: EvaluatorConfig,
    failures: dict[str, Failed],
    violations: Sequence[Violation] = (),
) -> Evaluation:
    """The evaluation of what failed, by the names of the subgraphs."""
    pairs = [(subgraph, failures[subgraph.name]) for subgraph in task.subgraphs]
    graphs = [blank(subgraph, failure.status, failure.message) for subgraph, failure in pairs]
    for graph, (_, failure) in zip(graphs, pairs, strict=True):
        graph.mismatches = failure.mismatches
    evaluation = conclude(task, candidate, config, Findings(graphs, list(violations)))
    evaluation.unrecorded = True
    return evaluation
