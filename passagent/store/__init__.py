"""What is kept: runs, episodes, nodes, evaluations and hint statistics in SQLite, files by content."""

from passagent.store.database import Store

__all__ = ["Store"]
