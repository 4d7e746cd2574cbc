"""Everything between a candidate and its AS. It knows nothing of agents, models or searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passagent.evaluator.result import Candidate, Evaluation

__all__ = ["Candidate", "Evaluation"]


def __getattr__(name: str) -> Any:
    """Candidate and Evaluation, when they are asked for: the evaluator's processes start without pydantic."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from passagent.evaluator import result

    return getattr(result, name)
