"""What a check of `passagent doctor` found."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Verdict = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """What a check found."""

    check: str
    verdict: Verdict
    said: str
    advice: str
    """What to do; empty where nothing is."""
    figures: dict[str, Any]
