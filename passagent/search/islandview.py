"""What a selection policy may look at: one island's nodes and the elites that came to it."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.evaluator.result import GRAVITY
from passagent.store import Store, migrations, nodes
from passagent.store.nodes import Node

_RECENT = 4
"""Newest failures among which the least grave is the one to mend."""


def fitness(node: Node) -> float:
    """The AS of a correct node; a correct node that was not timed comes after every timed one."""
    return -1.0 if node.as_score is None else node.as_score


@dataclass(frozen=True)
class IslandView:
    """An island of a run. Its episodes follow each other, so what is seen here does not depend on timing."""

    store: Store
    run_id: str
    island: int

    def elites(self, limit: int) -> list[Node]:
        """The best correct nodes with distinct files, migrants included, the best first."""
        own = nodes.best_of_island(self.store, self.run_id, self.island, limit)
        distinct: dict[str, Node] = {}
        for node in [*own, *migrations.migrants(self.store, self.run_id, self.island, limit)]:
            distinct.setdefault(node.candidate_key, node)
        return sorted(distinct.values(), key=lambda node: (-fitness(node), node.number, node.id))[:limit]

    def best(self) -> Node | None:
        """The best elite."""
        return next(iter(self.elites(1)), None)

    def to_mend(self) -> Node | None:
        """Where nothing is correct yet: the least grave of the newest failures."""
        failures = nodes.latest_failures(self.store, self.run_id, self.island, _RECENT)
        return min(failures, key=lambda node: GRAVITY.index(node.status), default=None)  # type: ignore[arg-type]
