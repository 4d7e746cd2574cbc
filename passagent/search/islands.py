"""Islands: what a policy may look at, and what episodes gained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from passagent.config import SearchConfig
from passagent.evaluator.result import GRAVITY
from passagent.store import SEEDS, Node, Store, nodes
from passagent.store.runs import Gains

_RECENT = 4
"""The number of newest failures from which the least grave is chosen for repair."""


@dataclass(frozen=True)
class IslandView:
    """An island of a run. Its episodes follow each other, so what is seen here does not depend on timing."""

    store: Store
    run_id: str
    island: int

    def elites(self, limit: int, before: float = math.inf) -> list[Node]:
        """The best correct nodes with distinct sources, migrants and seeds included, the best first.

        Of episodes `before` this number: what the island knew of when that one began.
        """
        best_nodes = nodes.migrants(self.store, self.run_id, self.island)
        for island in {self.island, SEEDS}:
            best_nodes += nodes.best_of_island(self.store, self.run_id, island, limit, before)
        return nodes.distinct(best_nodes)[:limit]

    def best_before(self, number: int) -> float | None:
        """The best AS that the island knows of when its episode `number` begins; see Node.fitness.

        None where nothing is correct.
        """
        return next((node.fitness for node in self.elites(1, number)), None)

    def best(self) -> Node | None:
        """The best elite."""
        return next(iter(self.elites(1)), None)

    def to_mend(self) -> Node | None:
        """Where nothing is correct yet: the least grave of the newest failures."""
        failures = nodes.latest_failures(self.store, self.run_id, self.island, _RECENT)
        failures = failures or nodes.latest_failures(self.store, self.run_id, SEEDS, _RECENT)
        return min(failures, key=lambda node: GRAVITY.index(node.status), default=None)  # type: ignore[arg-type]


def is_draft(config: SearchConfig, number: int) -> bool:
    """Tell whether episode `number` starts from the task and sees no other: the first ones, or all."""
    return 0 < number <= config.drafts or config.policy == "best_of_n"


def is_first(drafts: int, islands: int, number: int) -> bool:
    """Tell whether episode `number` is the first of its island that is no draft: it starts from a seed."""
    return drafts < number <= drafts + islands


MIN_GAIN = 0.01
"""Relative gain in AS that counts as progress."""
HALF_LIFE = 8
"""Episodes after which a gain counts half as much for what is to be expected."""
MIN_HISTORY = 2 * HALF_LIFE
"""Episodes before anything is expected."""
EAGER_AS = 1.0
"""The task's own score: eager against eager."""


def log_gain(parent: Node | None, best_as: float | None) -> float | None:
    """ln(best AS / the AS before), a parent that is not correct counting as the task; None without a best."""
    if best_as is None or best_as <= 0:
        return None
    start = (parent.correct_as if parent else None) or EAGER_AS
    return math.log(best_as / start)


def is_progress(before: float | None, after: float | None) -> bool:
    """Tell whether a best AS rose by the share MIN_GAIN."""
    if after is None:
        return False
    return before is None or after > before * (1 + MIN_GAIN)


def gains_after(before: Gains, best: float | None, searched_s: float, headroom: float | None = None) -> Gains:
    """The run's gains with one more episode, which left `best` and `headroom` and ended at `searched_s`.

    What is gained from nothing correct is counted from eager's AS.
    """
    headrooms = [value for value in (before.headroom, headroom) if value is not None]
    best_as = max((score for score in (before.best_as, best) if score is not None), default=None)
    gain = 0.0
    if best_as is not None and best_as > 0:
        gain = max(0.0, math.log(best_as / (before.best_as or EAGER_AS)))
    is_gain = is_progress(before.marked_as, best_as)
    fade = 0.5 ** (1 / HALF_LIFE)
    return Gains(
        before.episodes + 1,
        best_as,
        best_as if is_gain else before.marked_as,
        0 if is_gain else before.stagnant + 1,
        searched_s,
        before.gain * fade + gain,
        before.hours * fade + max(0.0, searched_s - before.searched_s) / 3600,
        min(headrooms, default=None),
    )


def expected_per_hour(gains: Gains) -> float | None:
    """The relative gain in AS that an hour more is expected to bring: 0.02 is 2%.

    As in the past, the nearer past counting more: with weights w that halve every HALF_LIFE episodes,
    exp(sum of w ln(AS after / AS before) / sum of w hours) - 1. None before MIN_HISTORY episodes.
    """
    if gains.episodes < MIN_HISTORY or gains.hours <= 0:
        return None
    return math.expm1(min(gains.gain / gains.hours, 700.0))
