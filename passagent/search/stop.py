"""Stopping rules: each looks at the progress and says why to stop, or nothing. They compose with `any_of`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from passagent.config import SearchConfig


@dataclass(frozen=True)
class Progress:
    """A run so far, all its sessions together."""

    episodes: int
    """Finished."""
    evaluations: int
    tokens: int
    elapsed_s: float
    best_as: float | None


StopRule = Callable[[Progress], str | None]


def iterations(limit: int) -> StopRule:
    """All episodes are done."""
    return lambda progress: f"all {limit} episodes are done" if progress.episodes >= limit else None


def evaluations(limit: int) -> StopRule:
    """Candidates evaluated; answers from the store are not counted."""
    return lambda progress: f"{limit} evaluations are made" if progress.evaluations >= limit else None


def tokens(limit: int) -> StopRule:
    """Tokens in and out."""
    return lambda progress: f"{limit} tokens are used" if progress.tokens >= limit else None


def time(limit_s: float) -> StopRule:
    """Time searched, s."""
    return lambda progress: f"{limit_s:g} s have passed" if progress.elapsed_s >= limit_s else None


def target_as(target: float) -> StopRule:
    """A correct pass is good enough."""

    def rule(progress: Progress) -> str | None:
        if progress.best_as is not None and progress.best_as >= target:
            return f"the target AS {target:g} is reached"
        return None

    return rule


def any_of(rules: list[StopRule]) -> StopRule:
    """Stop as soon as one of `rules` does; the first one's reason."""
    return lambda progress: next((reason for rule in rules if (reason := rule(progress))), None)


def rules_of(config: SearchConfig) -> StopRule:
    """The rules that a configuration asks for."""
    rules = [iterations(config.iters)]
    if config.target_as is not None:
        rules.append(target_as(config.target_as))
    if config.max_evaluations is not None:
        rules.append(evaluations(config.max_evaluations))
    if config.max_tokens is not None:
        rules.append(tokens(config.max_tokens))
    if config.max_time_s is not None:
        rules.append(time(config.max_time_s))
    return any_of(rules)
