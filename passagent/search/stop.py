"""Stopping rules: they look at the progress and say why to stop, or nothing.

Whether there is room for what is to be done next is asked before a model call or an evaluation begins, and
counts what the others have under way (`lack`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from passagent import extend
from passagent.config import SearchConfig


@dataclass(frozen=True)
class Progress:
    """A run so far. Counts are of all its sessions, the time is this one's."""

    episodes: int
    """Finished."""
    evaluations: int
    tokens: int
    elapsed_s: float
    """The time since this command began, s."""
    best_as: float | None
    cost: float = 0.0
    """USD, as far as prices are known."""
    stagnant: int = 0
    """Episodes since the run's best AS last rose by 1%."""
    gain_per_hour: float | None = None
    """Relative gain in AS that an hour more is expected to bring; None: not known yet."""
    headroom: float | None = None
    """The best pass's time over the speed of light; None: not known."""
    reserved_s: float = 0.0
    """The part of a time limit that is kept for measuring the finalists, s."""

    def left_s(self, limit_s: float) -> float:
        """The remaining part of `limit_s` for the search, s."""
        return max(0.0, limit_s - self.elapsed_s - self.reserved_s)


@dataclass(frozen=True, eq=False)
class Want:
    """The most that a model call or an evaluation may take."""

    tokens: int = 0
    cost: float | None = 0.0
    """USD; None: not known."""
    seconds: float = 0.0
    """The average time, s."""
    evaluations: int = 0


def rules_of(config: SearchConfig) -> Callable[[Progress], str | None]:
    """The rules of a configuration in one. Raises UsageError for a dotted path that does not load."""
    own_rules: list[extend.StopRule] = [extend.make(path, "search.stop", config) for path in config.stop]

    def rule(progress: Progress) -> str | None:
        reasons = (own_rule(progress) for own_rule in own_rules)
        return _reached(config, progress) or next((reason for reason in reasons if reason), None)

    return rule


def _reached(config: SearchConfig, progress: Progress) -> str | None:
    """The first limit of the settings that the run has reached, in words; None if there is none."""
    if progress.episodes >= config.iters:
        return f"all {config.iters} episodes are done"
    if config.target_as is not None and (progress.best_as or 0.0) >= config.target_as:
        return f"the target AS {config.target_as:g} is reached"
    if config.max_evaluations is not None and progress.evaluations >= config.max_evaluations:
        return f"{config.max_evaluations} evaluations are made"
    if config.max_tokens is not None and progress.tokens >= config.max_tokens:
        return f"{config.max_tokens} tokens are used"
    if config.max_cost is not None and progress.cost >= config.max_cost:
        return f"${config.max_cost:g} are spent"
    if config.max_time_s is not None and progress.left_s(config.max_time_s) <= 0:
        reserve = f" but for {progress.reserved_s:.2g} s for the finalists" if progress.reserved_s else ""
        return f"{config.max_time_s:g} s have passed{reserve}"
    if config.max_stagnation is not None and progress.stagnant >= config.max_stagnation:
        return f"{config.max_stagnation} episodes went by without a gain"
    gain = progress.gain_per_hour
    if config.until is not None and gain is not None and gain < config.until:
        return f"an hour more is expected to gain {gain:.2%}, less than {config.until:.2%}"
    margin, headroom = config.until_sol, progress.headroom
    if margin is not None and headroom is not None and headroom <= 1 + margin:
        return f"a pass is within {margin:.0%} of the speed of light"
    return None


def left(config: SearchConfig, progress: Progress) -> list[str]:
    """List in words what remains of the run's limited budgets."""
    budgets = []
    if config.max_evaluations is not None:
        evaluations_left = max(0, config.max_evaluations - progress.evaluations)
        budgets.append(f"the run's {evaluations_left} of {config.max_evaluations} evaluations")
    if config.max_tokens is not None:
        budgets.append(f"{max(0, config.max_tokens - progress.tokens)} of {config.max_tokens} tokens")
    if config.max_cost is not None:
        budgets.append(f"${max(0.0, config.max_cost - progress.cost):.4f} of ${config.max_cost:g}")
    if config.max_time_s is not None:
        budgets.append(f"{progress.left_s(config.max_time_s):.0f} of {config.max_time_s:g} seconds")
    return budgets


def total(wants: list[Want]) -> Want:
    """Add up the most that all may take together; a cost that is not known counts as none."""
    return Want(
        tokens=sum(want.tokens for want in wants),
        cost=sum(want.cost or 0.0 for want in wants),
        evaluations=sum(want.evaluations for want in wants),
    )


def lack(config: SearchConfig, progress: Progress, want: Want, held: Want) -> str | None:
    """Why there is no room for `want` beside what is `held` by all work under way; None if there is."""
    if config.max_tokens is not None and want.tokens:
        rest = config.max_tokens - progress.tokens - held.tokens
        if want.tokens > rest:
            return (
                f"the next call may take {want.tokens} tokens, {max(0, rest)} of {config.max_tokens} are left"
            )
    if config.max_cost is not None and want.cost:
        left_cost = config.max_cost - progress.cost - (held.cost or 0.0)
        if want.cost > left_cost:
            return (
                f"the next call may cost ${want.cost:.4f}, ${max(0.0, left_cost):.4f} of "
                f"${config.max_cost:g} are left"
            )
    if config.max_time_s is not None and want.seconds > (left_s := progress.left_s(config.max_time_s)):
        return f"the next call takes {want.seconds:.1f} s, {left_s:.1f} s of {config.max_time_s:g} are left"
    evaluations = progress.evaluations + held.evaluations
    if config.max_evaluations is not None and want.evaluations > max(0, config.max_evaluations - evaluations):
        return f"{config.max_evaluations} evaluations are made"
    return None
