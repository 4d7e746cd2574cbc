"""The evaluation of a candidate that gives no plan: known before anything of it is built or run."""

from __future__ import annotations

from passagent.config import EvaluatorConfig
from passagent.evaluator.judging.verdict import REFUSED, Failed, blank, conclude
from passagent.evaluator.result import Candidate, Evaluation, GraphResult, Violation
from passagent.tasks.reader import Subgraph, Task


def refused(
    task: Task, candidate: Candidate, config: EvaluatorConfig, violations: list[Violation]
) -> Evaluation:
    """A failure at every t on every subgraph of `task`, for `violations` of the rules."""
    graphs = [blank(one, "refused", REFUSED) for one in task.subgraphs]
    return _concluded(task, candidate, config, graphs, violations)


def failed(
    task: Task, candidate: Candidate, config: EvaluatorConfig, failures: dict[str, Failed]
) -> Evaluation:
    """The same for what failed, by the names of the subgraphs."""

    def result(subgraph: Subgraph) -> GraphResult:
        failure = failures[subgraph.name]
        return blank(subgraph, failure.status, failure.message)

    return _concluded(task, candidate, config, [result(one) for one in task.subgraphs], [])


def _concluded(
    task: Task,
    candidate: Candidate,
    config: EvaluatorConfig,
    graphs: list[GraphResult],
    violations: list[Violation],
) -> Evaluation:
    evaluation = conclude(task, candidate, config, graphs, violations, {}, interpreter=False)
    evaluation.unrecorded = True
    return evaluation
