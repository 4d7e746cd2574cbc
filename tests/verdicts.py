"""Answers of the evaluator, as the agent's tools get them."""

from __future__ import annotations

from typing import Any, NamedTuple

from passagent.agent.tool_specs import ToolAnswer
from passagent.models.types import Message


def verdict(status: str, as_score: float | None, **more: Any) -> dict[str, Any]:
    """The data of a message that tells of an evaluation."""
    known = {"gmean_speedup": as_score, "is_loose": False, "is_run": True}
    return {"evaluation": {"status": status, "as_score": as_score, **known, **more}}


def evaluated(status: str, as_score: float, text: str = "stage reached", **more: Any) -> ToolAnswer:
    """What `submit` gives."""
    return ToolAnswer(f"{text}\n\nstatus: {status}\nAS: {as_score:.4f}", verdict(status, as_score, **more))


class EpisodeEnd(NamedTuple):
    """How an episode came to its end."""

    reason: str
    steps: int
    """Model calls, those before a resume included."""
    text: str
    """The model's last text."""


def ended(reason: str, messages: list[Message]) -> EpisodeEnd:
    """The end of a conversation for `reason`."""
    texts = [message["content"] for message in messages if message["role"] == "assistant"]
    return EpisodeEnd(reason, len(texts), texts[-1] if texts else "")
