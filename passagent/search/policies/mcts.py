"""Monte Carlo tree search: UCT over one tree of all islands (Kocsis and Szepesvari 2006; KernelEvolve 3.1).

An episode is a visit: it is counted where it started and at all places above. Progressive widening (Coulom
2007; Chaslot et al. 2008): a place that was visited N times has at most N^widening children. Episodes in
flight are visits without an outcome (virtual loss: Chaslot, Winands and van den Herik 2008), so islands that
choose side by side spread.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from passagent.search.islandview import IslandView
from passagent.search.treerows import Place
from passagent.search.treeview import TreeView, take_in_own
from passagent.store.nodes import Node

MAX_CHILDREN = 24
"""Of a place, however often it was visited: so that a choice costs the same in a large tree."""


@dataclass(frozen=True)
class Mcts:
    """UCT with `exploration` c: the child with the largest mean value + c sqrt(ln(parent's visits) /
    visits)."""

    exploration: float
    widening: float

    scope = "tree"

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """See Policy.select."""
        assert view.position is not None
        tree = view.tree()
        # the islands before this one choose in the same round: on what all know, each would choose like this
        for _ in range(view.island):
            tree.visit(self._descend(tree).node_id)
        take_in_own(tree, view.position)
        return tree.node(self._descend(tree))

    def _descend(self, tree: TreeView) -> Place:
        """From the task down to the place that is to have another child."""
        here = tree.root()
        while True:
            children = tree.children(here.node_id)
            room = min(MAX_CHILDREN, math.floor(max(here.visits, 1) ** self.widening))
            if not children or len(children) + tree.waiting.get(here.node_id, 0) < room:
                return here
            bonus = self.exploration * math.sqrt(math.log(here.visits))
            here = max(
                children,
                key=lambda child: (tree.value(child) + bonus / math.sqrt(child.visits), -child.number),
            )
