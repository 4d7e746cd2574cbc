"""The course of a run: its candidates in the order they were made, thinned to what a picture can show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from passagent.store.database import Store

POINTS = 500
"""A picture is divided into so many parts; of the candidates in each the best and the worst are shown."""


class Made(NamedTuple):
    """A node, as far as pictures show it."""

    id: int
    parent: int | None
    island: int
    status: str
    """Of its evaluation; before that its state."""
    as_score: float | None
    is_repeat: bool


class Point(NamedTuple):
    """A correct candidate."""

    place: int
    """1, 2, ... among all nodes of the run."""
    node: int
    island: int
    as_score: float


@dataclass
class Course:
    """What came of a run's candidates, in order."""

    nodes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Of all nodes: how many there are of each."""
    newest: dict[str, int] = field(default_factory=dict)
    """Of each status the newest node."""
    points: list[Point] = field(default_factory=list)
    """Correct candidates, thinned."""
    best: list[Point] = field(default_factory=list)
    """Each better than all before it."""
    by_island: dict[int, list[Point]] = field(default_factory=dict)
    """Of each island the same."""


class Spent(NamedTuple):
    """What a run's model calls had taken up to a time."""

    at: float
    """s since 1970."""
    tokens: int
    cost: float
    """USD, as far as prices are known."""


def made(store: Store, run_id: str) -> list[Made]:
    """All nodes of a run, in the order they were made."""
    _, rows = store.columns(
        "SELECT id, parent_id, island, coalesce(status, state), as_score, repeat_of IS NOT NULL FROM nodes "
        "WHERE run_id = :run ORDER BY id",
        {"run": run_id},
    )
    return [Made._make(row) for row in rows]


def course(nodes: Sequence[Made]) -> Course:
    """The course that these nodes are."""
    found = Course(len(nodes), Counter(node[3] for node in nodes))
    shown: dict[int, tuple[Point, Point]] = {}
    best, of_island = 0.0, dict[int, float]()
    for place, (number, _, island, status, score, is_repeat) in enumerate(nodes, 1):
        found.newest[status] = number
        if status != "ok" or score is None or is_repeat:
            continue
        part = place * POINTS // (len(nodes) + 1)
        worst_and_best = shown.get(part)
        if worst_and_best is None:
            shown[part] = Point(place, number, island, score), Point(place, number, island, score)
        elif score < worst_and_best[0].as_score:
            shown[part] = Point(place, number, island, score), worst_and_best[1]
        elif score > worst_and_best[1].as_score:
            shown[part] = worst_and_best[0], Point(place, number, island, score)
        if score > best:
            best = score
            found.best.append(Point(place, number, island, score))
        if score > of_island.get(island, 0.0):
            of_island[island] = score
            found.by_island.setdefault(island, []).append(Point(place, number, island, score))
    found.points = [point for pair in shown.values() for point in sorted(set(pair))]
    return found


def spending(store: Store, run_id: str) -> list[Spent]:
    """What the run's model calls had taken, thinned."""
    _, rows = store.columns(
        "SELECT finished_at, input_tokens + output_tokens, coalesce(cost, 0) FROM calls "
        "WHERE run_id = :run AND finished_at IS NOT NULL ORDER BY finished_at",
        {"run": run_id},
    )
    tokens, cost, found = 0, 0.0, []
    step = max(1, len(rows) // POINTS)
    for number, (at, more_tokens, more_cost) in enumerate(rows, 1):
        tokens, cost = tokens + more_tokens, cost + more_cost
        if number % step == 0 or number == len(rows):
            found.append(Spent(datetime.fromisoformat(at).timestamp(), tokens, cost))
    return found


def best_at(record: Iterable[Point], places: Iterable[int]) -> list[float | None]:
    """The best AS at each of the ascending `places`; None before the first."""
    rest, value, found = list(reversed(list(record))), None, []
    for place in places:
        while rest and rest[-1].place <= place:
            value = rest.pop().as_score
        found.append(value)
    return found
