"""A selection policy of your own: `--set search.policy=examples.extend.policy:Newest`."""

import random

from passagent.config import SearchConfig
from passagent.search.islands import IslandView
from passagent.store.nodes import Node


class Newest:
    """The newest of the island's elites; the task itself while there is none."""

    scope = "islands"

    def __init__(self, config: SearchConfig) -> None:
        self.elites = config.elites

    def select(self, view: IslandView, rng: random.Random) -> Node | None:
        return max(view.elites(self.elites), key=lambda node: node.number, default=None)
