"""Elites and tournament on an island, with a chance to begin anew (Kernel Foundry 3.3.1)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from passagent.search.islandview import IslandView, fitness
from passagent.store.nodes import Node


@dataclass(frozen=True)
class Evolutionary:
    """The best of `tournament` draws from the island's `elites`; with chance `explore` the task itself."""

    elites: int
    tournament: int
    explore: float

    def select(self, island: IslandView, rng: random.Random) -> Node | None:
        """See Policy.select."""
        if rng.random() < self.explore:
            return None
        elites = island.elites(self.elites)
        if not elites:
            return island.to_mend()
        drawn = [rng.choice(elites) for _ in range(self.tournament)]
        return max(drawn, key=lambda node: (fitness(node), -node.number, -node.id))
