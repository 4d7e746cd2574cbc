"""The SQLite store: runs, episodes, nodes, evaluations and hint statistics in SQLite."""

from passagent.store.database import Store

__all__ = ["Store"]
