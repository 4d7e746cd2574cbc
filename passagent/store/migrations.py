"""Elites that moved between islands, and why (Kernel Foundry 3.3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.database import Store, now
from passagent.store.episodes import Episode
from passagent.store.nodes import Node


@dataclass(frozen=True)
class EliteMigration:
    """A row of `elite_migrations`."""

    id: int
    run_id: str
    from_island: int
    to_island: int
    node_id: int
    episode_id: int
    """The episode that started from the migrant."""
    reason: str
    created_at: str


def add_migration(store: Store, episode: Episode, node: Node, reason: str) -> None:
    """The episode starts from `node`, of another island; its island's count of stagnation starts anew."""
    with store.transaction():
        store.execute(
            "INSERT OR IGNORE INTO elite_migrations (run_id, from_island, to_island, node_id, episode_id, "
            "reason, created_at) VALUES (:run, :from, :to, :node, :episode, :reason, :at)",
            {
                "run": episode.run_id,
                "from": node.island,
                "to": episode.island,
                "node": node.id,
                "episode": episode.id,
                "reason": reason,
                "at": now(),
            },
        )
        store.execute(
            "UPDATE islands SET stagnant = 0 WHERE run_id = :run AND island = :island",
            {"run": episode.run_id, "island": episode.island},
        )


def list_migrations(store: Store, run_id: str) -> list[EliteMigration]:
    """All migrations of a run in order."""
    return store.all(
        EliteMigration, "SELECT * FROM elite_migrations WHERE run_id = :run ORDER BY id", {"run": run_id}
    )


def has_migrated(store: Store, node: Node, island: int) -> bool:
    """Whether the node came to the island before."""
    return bool(
        store.rows(
            "SELECT 1 FROM elite_migrations WHERE run_id = :run AND to_island = :island AND node_id = :node",
            {"run": node.run_id, "island": island, "node": node.id},
        )
    )
