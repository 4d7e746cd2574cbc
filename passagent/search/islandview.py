"""What a selection policy may look at: an island's nodes, elites that came to it, and the seeds."""

from __future__ import annotations

import random
from dataclasses import dataclass

from passagent.evaluator.result import GRAVITY
from passagent.store import Store, bests, nodes
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS

_RECENT = 4
"""Newest failures among which the least grave is the one to mend."""


def fitness(node: Node) -> float:
    """The AS of a correct node; a correct node that was not timed comes after every timed one."""
    return nodes.UNTIMED if node.as_score is None else node.as_score


def rank(node: Node) -> tuple[float, int, int]:
    """The better node has the higher rank; of equal ones the earlier, by episode and place, not by id."""
    return fitness(node), -node.number, -node.place


@dataclass(frozen=True)
class IslandView:
    """An island of a run. Its episodes follow each other, so what is seen here does not depend on timing."""

    store: Store
    run_id: str
    island: int

    def elites(self, limit: int) -> list[Node]:
        """The best correct nodes with distinct sources, migrants and seeds included, the best first."""
        found = bests.elites(self.store, self.run_id, self.island, limit)
        distinct: dict[str, Node] = {}
        for node in sorted(found, key=rank, reverse=True):
            distinct.setdefault(node.canonical_key, node)
        return list(distinct.values())[:limit]

    def best(self) -> Node | None:
        """The best elite."""
        return next(iter(self.elites(1)), None)

    def to_mend(self) -> Node | None:
        """Where nothing is correct yet: the least grave of the newest failures."""
        failures = nodes.latest_failures(self.store, self.run_id, self.island, _RECENT)
        failures = failures or nodes.latest_failures(self.store, self.run_id, SEEDS, _RECENT)
        return min(failures, key=lambda node: GRAVITY.index(node.status), default=None)  # type: ignore[arg-type]

    def any_node(self, rng: random.Random) -> Node | None:
        """A node of a seed or an episode of the island, drawn at random; the task (None) counts as one."""
        rows = self.store.rows(
            "SELECT id FROM episodes WHERE run_id = :run AND island IN (:island, :seeds) AND state = 'done' "
            "ORDER BY number",
            {"run": self.run_id, "island": self.island, "seeds": SEEDS},
        )
        drawn = rng.randrange(1 + len(rows))
        if drawn == 0:
            return None
        found = nodes.of_episode(self.store, rows[drawn - 1]["id"])
        return rng.choice(found) if found else None
