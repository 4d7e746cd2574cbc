"""The SQLite store: runs, episodes, nodes, evaluations and hint statistics in SQLite."""

from passagent.store.database import Store
from passagent.store.episodes import Episode
from passagent.store.nodes import Node
from passagent.store.runs import SEEDS, Run

__all__ = ["SEEDS", "Episode", "Node", "Run", "Store"]
