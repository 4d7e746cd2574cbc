"""Monte Carlo tree search: UCT over an island's episodes (Kocsis and Szepesvari 2006; KernelEvolve 3.1).

An episode is a visit: it is counted where it started and at all places above. Progressive widening (Coulom
2007; Chaslot et al. 2008): a place that was visited N times has at most N^widening children. The tree is
computed from the stored rows at each choice, so the same seed and the same replies give the same tree.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

from passagent.evaluator.result import GRAVITY
from passagent.search.islands import IslandView
from passagent.store import Store, nodes
from passagent.store.nodes import Node

MAX_CHILDREN = 24
"""The most children of a place, however often it was visited."""
FAILED, WORST, BEST = 0.0, 0.5, 1.0
"""Values of a failure, and of the correct candidates with the smallest and the largest AS in the tree;
between them a value is linear in ln(AS)."""


@dataclass
class Place:
    """The task, or what an episode is remembered by: its best candidate, else its least grave failure."""

    node_id: int | None = None
    """None: the task."""
    number: int = 0
    """The episode's number."""
    above: Place | None = None
    children: list[Place] = field(default_factory=list)
    visits: int = 0
    """Episodes at and below it."""
    correct: int = 0
    """The visits that left a correct candidate; `sum_log_as` adds up the ln(AS) of these."""
    sum_log_as: float = 0.0

    def count(self, log_as: float | None) -> None:
        """Count an episode here and at all places above; `log_as`: None if it left nothing correct."""
        place: Place | None = self
        while place is not None:
            place.visits += 1
            place.correct += log_as is not None
            place.sum_log_as += log_as or 0.0
            place = place.above


@dataclass(frozen=True)
class Tree:
    """The places of an island, below its task."""

    root: Place
    low: float
    """The smallest ln(AS) of a correct place; 0 without one."""
    high: float

    def value(self, place: Place) -> float:
        """The mean value of the episodes at and below a place, 0 to 1."""
        if not place.correct:
            return FAILED
        span = self.high - self.low
        share = (place.sum_log_as - place.correct * self.low) / span if span > 0 else float(place.correct)
        return (WORST * place.correct + (BEST - WORST) * share) / place.visits


def read_tree(store: Store, run_id: str, island: int) -> Tree:
    """The tree of the island's finished episodes.

    What started from a node that is not of the island (a seed, a migrant) hangs below the task.
    """
    root, logs = Place(), list[float]()
    places: dict[int | None, Place] = {None: root}
    rows = store.rows(
        "SELECT episodes.number, episodes.parent_id, nodes.id, nodes.status, nodes.as_score, nodes.place "
        "FROM episodes LEFT JOIN nodes ON nodes.episode_id = episodes.id AND nodes.state = 'done' "
        "WHERE episodes.run_id = :run AND episodes.island = :island AND episodes.state = 'done' "
        "ORDER BY episodes.number",
        {"run": run_id, "island": island},
    )
    for number, episode_rows in itertools.groupby(rows, key=lambda row: row["number"]):
        best = min(episode_rows, key=_rank)
        place = places.get(best["parent_id"], root)
        log_as = None
        if best["status"] == "ok":  # what was not timed counts as fast as eager
            log_as = math.log(best["as_score"]) if best["as_score"] else 0.0
            logs.append(log_as)
        if best["id"] is not None:
            child = places[best["id"]] = Place(best["id"], number, place)
            place.children.append(child)
            place = child
        place.count(log_as)
    return Tree(root, min(logs, default=0.0), max(logs, default=0.0))


def _rank(row: dict[str, Any]) -> tuple[float, ...]:
    """The smaller, the better an episode is remembered by this candidate of its."""
    if row["id"] is None:  # it left none
        return (0,)
    if row["status"] == "ok":
        return (0, -(row["as_score"] or 0.0), row["place"])
    return (1, GRAVITY.index(row["status"]), row["place"])


@dataclass(frozen=True)
class Mcts:
    """UCT with `exploration` c: the child with the largest mean value + c sqrt(ln(parent's visits) /
    visits)."""

    exploration: float = 0.5
    widening: float = 0.4

    scope = "islands"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as Policy.select says."""
        tree = read_tree(view.store, view.run_id, view.island)
        here = tree.root
        # a place with room for another child is where to start from
        while here.children and len(here.children) >= self._room(here):
            bonus = self.exploration * math.sqrt(math.log(here.visits))
            here = max(
                here.children,
                key=lambda child: (tree.value(child) + bonus / math.sqrt(child.visits), -child.number),
            )
        return None if here.node_id is None else nodes.get_node(view.store, here.node_id)

    def _room(self, place: Place) -> int:
        return min(MAX_CHILDREN, math.floor(max(place.visits, 1) ** self.widening))
