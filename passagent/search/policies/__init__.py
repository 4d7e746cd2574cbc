"""Selection policies: from which node does an island's next episode start? (KernelEvolve 3.1)"""

from __future__ import annotations

import random
from typing import Protocol

from passagent import extend
from passagent.config import SearchConfig
from passagent.search.islands import IslandView
from passagent.search.policies.controls import Anew, AtRandom
from passagent.search.policies.evolutionary import Evolutionary
from passagent.search.policies.greedy import Greedy
from passagent.search.policies.mcts import Mcts
from passagent.store.nodes import Node


class Policy(Protocol):
    """Chooses a parent."""

    @property
    def scope(self) -> str:
        """`islands`: elites migrate between them; `alone`: an island never looks at another one."""
        ...

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        """The parent of the next episode, None for the task itself. `rng` is the episode's own."""
        ...


def policy_of(config: SearchConfig) -> Policy:
    """The policy that a configuration names. Raises UsageError for a dotted path that does not load."""
    match config.policy:
        case "greedy":
            return Greedy()
        case "mcts":
            return Mcts()
        case "random":
            return AtRandom()
        case "best_of_n":
            return Anew()
        case "evolutionary":
            return Evolutionary(config.elites, config.explore)
        case path:
            policy: Policy = extend.make(path, "search.policy", config)
            return policy
