"""Gains: of an episode over where it started (for the hints it was shown), of an island over its past."""

from __future__ import annotations

import math

from passagent.store.nodes import Node

EAGER_AS = 1.0
"""What the task itself scores: eager against eager."""


def log_gain(parent: Node | None, best_as: float | None) -> float | None:
    """ln(best AS / the AS before), a parent that is not correct counting as the task; None without a best."""
    if best_as is None or best_as <= 0:
        return None
    start = parent.as_score if parent is not None and parent.status == "ok" and parent.as_score else EAGER_AS
    return math.log(best_as / start)


def is_progress(before: float | None, after: float | None, min_gain: float) -> bool:
    """Whether an island's best AS rose by the share `min_gain`."""
    if after is None:
        return False
    return before is None or after > before * (1 + min_gain)
