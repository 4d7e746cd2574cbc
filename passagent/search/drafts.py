"""How an island begins: with drafts (KernelEvolve 4, Figure 10), then from the run's best seed."""

from __future__ import annotations

from passagent.config import SearchConfig


def is_draft(config: SearchConfig, number: int) -> bool:
    """Whether episode `number` starts from the task and is told of no other: the first ones, or all."""
    return 0 < number <= config.drafts or config.policy == "best_of_n"


def is_first(drafts: int, islands: int, number: int) -> bool:
    """Whether episode `number` is the first of its island that is no draft: it starts from a seed."""
    return drafts < number <= drafts + islands
