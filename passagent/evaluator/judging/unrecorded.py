"""The evaluation of a candidate that gives no plan: known before anything of it is built or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging.verdict import REFUSED, Failed, blank, conclude
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
    beside = {name: one.mismatches for name, one in unmatched.items()}
    failures = {one.name: Failed("refused", REFUSED, beside.get(one.name, ())) for one in task.subgraphs}
    return failed(task, candidate, config, failures, violations)


def failed(
    task: Task,
    candidate: Candidate,
    config: EvaluatorConfig,
    failures: dict[str, Failed],
    violations: Sequence[Violation] = (),
) -> Evaluation:
    """The same for what failed, by the names of the subgraphs."""
    pairs = [(one, failures[one.name]) for one in task.subgraphs]
    graphs = [blank(one, failure.status, failure.message) for one, failure in pairs]
    for graph, (_, failure) in zip(graphs, pairs, strict=True):
        graph.mismatches = failure.mismatches
    evaluation = conclude(task, candidate, config, graphs, list(violations), {}, interpreter=False)
    evaluation.unrecorded = True
    return evaluation
