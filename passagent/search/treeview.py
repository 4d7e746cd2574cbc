"""The tree of all islands as the episode of a round may see it, whichever island is faster.

For an episode of round r: what the episodes of the rounds up to r - 2 left, of all islands; of round r - 1
the outcome of its own island's episode, and of the others' where they began, as visits without an outcome.
All that is known to everyone is a table (search/treerows.py); the last two rounds are added here, in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from passagent.evaluator.result import GRAVITY
from passagent.search import treerows
from passagent.search.rounds import Position
from passagent.search.treerows import TASK, Outcome, Place
from passagent.store import Store, episodes, nodes
from passagent.store.nodes import Node

FAILED, WORST, BEST = 0.0, 0.5, 1.0
"""Values of a failure, and of the correct candidates with the smallest and the largest AS in the tree;
between them a value is linear in ln(AS)."""


@dataclass
class TreeView:
    """What one episode sees. `visit` and `take_in` add to it; nothing is written to the store."""

    store: Store
    run_id: str
    low: float | None
    """The smallest ln(AS) in the tree; None: nothing is correct yet."""
    high: float | None
    extra: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    """Of a node: visits, correct ones and the sum of ln(AS) that come to those of the table."""
    born: dict[int, list[Place]] = field(default_factory=dict)
    """Nodes below a node that are not in the table."""
    waiting: dict[int, int] = field(default_factory=dict)
    """Episodes in flight that start from a node: their candidates are still to come."""
    _children: dict[int, list[Place]] = field(default_factory=dict)
    _above: dict[int, list[int]] = field(default_factory=dict)

    def root(self) -> Place:
        """The task."""
        return self._with_extra(treerows.get(self.store, self.run_id, TASK))

    def children(self, node_id: int) -> list[Place]:
        """The nodes right below a node, in the order of their episodes."""
        if node_id not in self._children:
            self._children[node_id] = treerows.children(self.store, self.run_id, node_id)
        return [self._with_extra(place) for place in (*self._children[node_id], *self.born.get(node_id, ()))]

    def value(self, place: Place) -> float:
        """The mean value of the episodes at and below a place, 0 to 1; one in flight counts as a failure."""
        if self.low is None or self.high is None or not place.correct:
            return FAILED
        span = self.high - self.low
        share = (place.sum_log_as - place.correct * self.low) / span if span > 0 else float(place.correct)
        return (WORST * place.correct + (BEST - WORST) * share) / place.visits

    def visit(self, node_id: int) -> None:
        """An episode is in flight that started from this node."""
        self.waiting[node_id] = self.waiting.get(node_id, 0) + 1
        self._count(node_id, 1, 0, 0.0)

    def take_in(self, node_id: int, number: int, left: Outcome) -> None:
        """The episode in flight that started from this node has left something."""
        self.waiting[node_id] -= 1
        correct, log_as = int(left.log_as is not None), left.log_as or 0.0
        if correct:
            self.low = log_as if self.low is None else min(self.low, log_as)
            self.high = log_as if self.high is None else max(self.high, log_as)
        if left.node_id is not None:
            place = Place(left.node_id, number, 1, correct, log_as)
            self.born.setdefault(node_id, []).append(place)
        self._count(node_id, 0, correct, log_as)

    def node(self, place: Place) -> Node | None:
        """The candidate of a place; None: the task."""
        return None if place.node_id == TASK else nodes.get_node(self.store, place.node_id)

    def _count(self, node_id: int, visits: int, correct: int, log_as: float) -> None:
        if node_id not in self._above:
            self._above[node_id] = treerows.above(self.store, self.run_id, node_id)
        for above in self._above[node_id]:
            before = self.extra.get(above, (0, 0, 0.0))
            self.extra[above] = (before[0] + visits, before[1] + correct, before[2] + log_as)

    def _with_extra(self, place: Place) -> Place:
        if place.node_id not in self.extra:
            return place
        visits, correct, log_as = self.extra[place.node_id]
        return place._replace(
            visits=place.visits + visits,
            correct=place.correct + correct,
            sum_log_as=place.sum_log_as + log_as,
        )


def open_tree(store: Store, run_id: str, position: Position) -> TreeView:
    """What every island sees in the round of `position`: all that is settled, and the last round in flight.

    All islands must have finished the rounds up to the last but one, and have begun the last.
    """
    settled = max(0, position.number_of(position.round - 1, 0) - 1)
    treerows.settle(store, run_id, settled, lambda episode_id: outcome(store, episode_id))
    view = TreeView(store, run_id, *(treerows.scale(store, run_id) or (None, None)))
    for number in range(settled + 1, position.number_of(position.round, 0)):
        view.visit(start_of(store, run_id, number))
    return view


def take_in_own(view: TreeView, position: Position) -> None:
    """Add what only the island of `position` knows: how its last episode ended."""
    number = position.number - position.islands
    if number < 1:
        return
    episode = episodes.of_number(view.store, view.run_id, number)
    view.take_in(start_of(view.store, view.run_id, number), number, outcome(view.store, episode.id))


def start_of(store: Store, run_id: str, number: int) -> int:
    """The place in the tree that episode `number` started from."""
    return treerows.place_of(store, run_id, episodes.of_number(store, run_id, number).parent_id)


def _gravity(node: Node) -> tuple[int, int]:
    return GRAVITY.index(node.status), node.place  # type: ignore[arg-type]


def outcome(store: Store, episode_id: int) -> Outcome:
    """What a finished episode is remembered by: its best candidate, else the least grave failure."""
    made = nodes.of_episode(store, episode_id)
    if not made:
        return Outcome(None, None)
    correct = [node for node in made if node.status == "ok"]
    if not correct:
        return Outcome(min(made, key=_gravity).id, None)
    best = max(correct, key=lambda node: (node.as_score or 0.0, -node.place))
    # what was not timed counts as fast as eager
    return Outcome(best.id, math.log(best.as_score) if best.as_score else 0.0)
