"""Elites and tournament on an island (Kernel Foundry 3.3.1)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from passagent.search.islands import IslandView, rank
from passagent.store.nodes import Node


@dataclass(frozen=True)
class Evolutionary:
    """The best of `tournament` draws from the island's `elites`; with chance `explore` the task itself."""

    elites: int
    explore: float
    tournament: int = 2

    scope = "islands"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as Policy.select says."""
        if rng.random() < self.explore:
            return None
        elites = view.elites(self.elites)
        if not elites:
            return view.to_mend()
        return max((rng.choice(elites) for _ in range(self.tournament)), key=rank)
