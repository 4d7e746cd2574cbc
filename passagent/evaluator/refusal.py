"""The evaluation of a candidate that static inspection refuses: known without a device, without torch."""

from __future__ import annotations

from passagent.config import EvaluatorConfig
from passagent.evaluator import score
from passagent.evaluator.environment import evaluator_version
from passagent.evaluator.result import Candidate, Evaluation, GraphResult, Violation
from passagent.tasks.reader import Task

REFUSED = "broke an integrity rule; see violations"


def refusal(
    task: Task, candidate: Candidate, config: EvaluatorConfig, violations: list[Violation]
) -> Evaluation:
    """A failure at every t on every subgraph of `task`, for `violations` of inspection.inspect."""
    failed = [score.GraphScore(None, None, "integrity")] * len(task.subgraphs)
    es = {t: score.es(failed, t, config.b, config.p) for t in score.T_RANGE}
    return Evaluation(
        task=task.name,
        candidate=candidate.key,
        device=config.device,
        dispatch="dynamo" if config.protocol == "passbench" else config.dispatch,
        timing="none",
        status="refused",
        static=True,
        as_score=score.aggregate(es),
        es={str(t): value for t, value in es.items()},
        graphs=[
            GraphResult(name=one.name, dtype=one.dtype, status="refused", error=REFUSED)
            for one in task.subgraphs
        ],
        violations=violations,
        error=REFUSED,
        fast_1=0.0,
        evaluator_version=evaluator_version(),
    )
