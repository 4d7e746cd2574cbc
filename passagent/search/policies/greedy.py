"""Always the best: the baseline that other policies are held against (KernelEvolve 3.1)."""

from __future__ import annotations

import random

from passagent.search.islands import IslandView
from passagent.store.nodes import Node


class Greedy:
    """The island's best correct node, else the failure that is nearest to one."""

    scope = "islands"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """Select a parent, as Policy.select says."""
        return view.best() or view.to_mend()
