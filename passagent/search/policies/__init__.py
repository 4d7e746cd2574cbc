"""Selection policies: from which node does an island's next episode start?"""

from __future__ import annotations

import random
from typing import Protocol

from passagent.config import SearchConfig
from passagent.search.islandview import IslandView
from passagent.search.policies.evolutionary import Evolutionary
from passagent.search.policies.greedy import Greedy
from passagent.store.nodes import Node


class Policy(Protocol):
    """Chooses a parent."""

    def select(self, island: IslandView, rng: random.Random) -> Node | None:
        """The parent of the next episode, None for the task itself. `rng` is the episode's own."""
        ...


def policy_of(config: SearchConfig) -> Policy:
    """The policy that a configuration names."""
    if config.policy == "greedy":
        return Greedy()
    return Evolutionary(elites=config.elites, tournament=config.tournament, explore=config.explore)
