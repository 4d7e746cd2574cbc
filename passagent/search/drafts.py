"""The draft phase: independent first attempts, before the tree is expanded (KernelEvolve 4, Figure 10)."""

from __future__ import annotations

from passagent.config import SearchConfig


def is_draft(config: SearchConfig, number: int) -> bool:
    """Whether episode `number` starts from the task and is told of no other: the first ones, or all."""
    return 0 < number <= config.drafts or config.policy == "best_of_n"
