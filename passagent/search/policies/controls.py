"""Control policies that a search must beat: parents at random, and no parents at all."""

from __future__ import annotations

import random

from passagent.search.islands import IslandView
from passagent.store.nodes import Node


class AtRandom:
    """Any earlier node of the island, good or bad, or the task."""

    scope = "alone"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as Policy.select says."""
        return view.any_node(rng)


class Anew:
    """Best of N: every episode starts from the task and knows of no other."""

    scope = "alone"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select no parent, as Policy.select allows."""
        return None
