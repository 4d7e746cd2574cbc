"""Elites and tournament on an island (Kernel Foundry 3.3.1), and an archive that keeps other kinds alive."""

from __future__ import annotations

import random
from dataclasses import dataclass

from passagent.search.islandview import IslandView, rank
from passagent.store.nodes import Node

CELLS = 32
"""Behaviours that the archive's draw is over: those with the best elites."""


@dataclass(frozen=True)
class Evolutionary:
    """The best of `tournament` draws from the island's `elites`.

    With chance `diversity` a draw from the archive instead, every behaviour alike (MAP-Elites: Mouret and
    Clune 2015); with chance `explore` the task itself.
    """

    elites: int
    tournament: int
    explore: float
    diversity: float

    scope = "islands"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """See Policy.select."""
        if rng.random() < self.explore:
            return None
        elites = view.elites(self.elites)
        if not elites:
            return view.to_mend()
        if rng.random() < self.diversity:
            return rng.choice(view.cells(CELLS) or elites)
        return max((rng.choice(elites) for _ in range(self.tournament)), key=rank)
