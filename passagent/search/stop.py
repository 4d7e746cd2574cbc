"""Stopping rules: each looks at the progress and says why to stop, or nothing. They compose with `any_of`.

They look at what is done (`rules_of`). Whether there is room for what is to be done next is asked before a
model call or an evaluation begins, and counts what the others have under way (`lack`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from passagent import extend
from passagent.config import SearchConfig


@dataclass(frozen=True)
class Progress:
    """A run so far, all its sessions together."""

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


def cost(limit: float) -> StopRule:
    """Money, USD."""
    return lambda progress: f"${limit:g} are spent" if progress.cost >= limit else None


def time(limit_s: float) -> StopRule:
    """Time of this command, s, less what its finalists take."""

    def rule(progress: Progress) -> str | None:
        reserve = f" but for {progress.reserved_s:.2g} s for the finalists" if progress.reserved_s else ""
        return f"{limit_s:g} s have passed{reserve}" if progress.left_s(limit_s) <= 0 else None

    return rule


def target_as(target: float) -> StopRule:
    """A correct pass is good enough."""

    def rule(progress: Progress) -> str | None:
        if progress.best_as is not None and progress.best_as >= target:
            return f"the target AS {target:g} is reached"
        return None

    return rule


def stagnation(limit: int) -> StopRule:
    """So many episodes of the run went by without a gain."""
    reason = f"{limit} episodes went by without a gain"
    return lambda progress: reason if progress.stagnant >= limit else None


def until(bound: float) -> StopRule:
    """An hour more is expected to gain less than the share `bound` (gain.expected_per_hour)."""

    def rule(progress: Progress) -> str | None:
        if progress.gain_per_hour is not None and progress.gain_per_hour < bound:
            return f"an hour more is expected to gain {progress.gain_per_hour:.2%}, less than {bound:.2%}"
        return None

    return rule


def speed_of_light(margin: float) -> StopRule:
    """A correct pass is within `margin` of the speed of light."""
    reason = f"a pass is within {margin:.0%} of the speed of light"
    return lambda progress: (
        reason if progress.headroom is not None and progress.headroom <= 1 + margin else None
    )


def any_of(rules: list[StopRule]) -> StopRule:
    """Stop as soon as one of `rules` does; the first one's reason."""
    return lambda progress: next((reason for rule in rules if (reason := rule(progress))), None)


def rules_of(config: SearchConfig) -> StopRule:
    """The rules that a configuration asks for. Raises UsageError for a dotted path that does not load."""
    rules = [iterations(config.iters)]
    if config.target_as is not None:
        rules.append(target_as(config.target_as))
    if config.max_evaluations is not None:
        rules.append(evaluations(config.max_evaluations))
    if config.max_tokens is not None:
        rules.append(tokens(config.max_tokens))
    if config.max_cost is not None:
        rules.append(cost(config.max_cost))
    if config.max_time_s is not None:
        rules.append(time(config.max_time_s))
    if config.max_stagnation is not None:
        rules.append(stagnation(config.max_stagnation))
    if config.until is not None:
        rules.append(until(config.until))
    if config.until_sol is not None:
        rules.append(speed_of_light(config.until_sol))
    rules += [extend.make(path, "search.stop", config) for path in config.stop]
    return any_of(rules)


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


def is_limited(config: SearchConfig, want: Want) -> bool:
    """Tell whether some budget bounds what `want` may take."""
    limits = (
        (config.max_tokens, want.tokens),
        (config.max_cost, want.cost),
        (config.max_time_s, want.seconds),
        (config.max_evaluations, want.evaluations),
    )
    return any(limit is not None and amount for limit, amount in limits)


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
