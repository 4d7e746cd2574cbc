"""Everything between a candidate and its AS. It knows nothing of agents, models or searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passagent.config import EvaluatorConfig
    from passagent.evaluator.result import Candidate, Evaluation
    from passagent.tasks import Task

__all__ = ["Candidate", "Evaluation", "evaluate"]


def evaluate(task: Task, candidate: Candidate, config: EvaluatorConfig | None = None) -> Evaluation:
    """Judge one candidate, for notebooks and scripts: the same referee, the same result.

    It shares the device with other programs. Raises TaskError if eager itself fails, UsageError for
    a device that is not here.
    """
    from passagent.evaluator.judging.referee import Referee

    with Referee(config) as referee:
        return referee.evaluate(task, candidate)


def __getattr__(name: str) -> Any:
    """Candidate and Evaluation, when they are asked for: the evaluator's processes start without pydantic."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from passagent.evaluator import result

    return getattr(result, name)
