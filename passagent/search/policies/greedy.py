"""Always the best: the baseline that other policies are held against."""

from __future__ import annotations

import random

from passagent.search.islandview import IslandView
from passagent.store.nodes import Node


class Greedy:
    """The island's best correct node, else the failure that is nearest to one."""

    def select(self, island: IslandView, rng: random.Random) -> Node | None:
        """See Policy.select."""
        return island.best() or island.to_mend()
