"""The best nodes of islands, what was known of them before, and elites that moved between islands."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.database import Store, now
from passagent.store.episodes import Episode
from passagent.store.nodes import UNTIMED, Node
from passagent.store.runs import SEEDS


def best_of_island(store: Store, run_id: str, island: int, limit: int) -> list[Node]:
    """The island's correct nodes with distinct files, the best first."""
    return store.all(
        Node,
        "SELECT * FROM nodes WHERE run_id = :run AND island = :island AND status = 'ok' "
        "AND repeat_of IS NULL ORDER BY as_score DESC, number, place LIMIT :limit",
        {"run": run_id, "island": island, "limit": limit},
    )


def elites(store: Store, run_id: str, island: int, limit: int) -> list[Node]:
    """The best correct nodes that the island knows of: its own, migrants and seeds, `limit` of each."""
    best = (
        "SELECT * FROM nodes WHERE run_id = :run AND island = {} AND status = 'ok' AND repeat_of IS NULL "
        "ORDER BY as_score DESC, number, place LIMIT :limit"
    )
    return store.all(
        Node,
        f"SELECT * FROM ({best.format(':island')}) "
        f"UNION ALL SELECT * FROM ({best.format(':seeds')}) WHERE :island != :seeds "
        "UNION ALL SELECT * FROM (SELECT nodes.* FROM elite_migrations JOIN nodes ON nodes.id = node_id "
        "WHERE elite_migrations.run_id = :run AND to_island = :island "
        "ORDER BY nodes.as_score DESC, nodes.number, nodes.place LIMIT :limit)",
        {"run": run_id, "island": island, "seeds": SEEDS, "limit": limit},
    )


def best_of_others(store: Store, run_id: str, island: int) -> Node | None:
    """The best correct node that the other islands made, the seeds not counted."""
    return store.one(
        Node,
        "SELECT * FROM nodes WHERE id = (SELECT one.id FROM islands JOIN nodes AS one ON one.id = "
        "(SELECT id FROM nodes AS own WHERE own.run_id = :run AND own.island = islands.island "
        "AND status = 'ok' AND repeat_of IS NULL "
        "ORDER BY as_score DESC, number, place LIMIT 1) "
        "WHERE islands.run_id = :run AND islands.island NOT IN (:island, :seeds) "
        "ORDER BY one.as_score DESC, one.number, one.place LIMIT 1)",
        {"run": run_id, "island": island, "seeds": SEEDS},
    )


def best_known(store: Store, run_id: str, island: int, number: int) -> float | None:
    """The best AS that the island knows of when its episode `number` begins: its own, migrants' and seeds'.

    UNTIMED where nothing correct was timed, None where nothing is correct.
    """
    own_nodes = (
        "SELECT * FROM (SELECT as_score FROM nodes WHERE run_id = :run AND island = {} "
        "AND status = 'ok' AND repeat_of IS NULL AND number < :number ORDER BY as_score DESC LIMIT 1)"
    )
    row = store.row(
        f"SELECT max(coalesce(as_score, {UNTIMED})) AS best FROM ({own_nodes.format(':island')} "
        f"UNION ALL {own_nodes.format(':seeds')} UNION ALL SELECT as_score FROM elite_migrations "
        "JOIN nodes ON nodes.id = node_id WHERE elite_migrations.run_id = :run AND to_island = :island)",
        {"run": run_id, "island": island, "number": number, "seeds": SEEDS},
    )
    return row["best"] if row else None


def as_before(store: Store, node: Node) -> tuple[float | None, float | None]:
    """The AS of the node's parent, if that is correct; and the best that its island knew of when the node was
    made, see best_known.
    """
    own_nodes = (
        "SELECT as_score FROM (SELECT as_score FROM nodes WHERE run_id = :run AND island = :island "
        "AND status = 'ok' AND repeat_of IS NULL AND +id < :id ORDER BY as_score DESC LIMIT 1)"
    )
    migrated = (
        "SELECT as_score FROM elite_migrations JOIN nodes ON nodes.id = node_id "
        "WHERE elite_migrations.run_id = :run AND to_island = :island "
        "AND elite_migrations.episode_id <= :episode"
    )
    row = store.row(
        f"SELECT (SELECT as_score FROM nodes WHERE id = :parent AND status = 'ok') AS parent, "
        f"max(as_score) AS best "
        f"FROM ({own_nodes} UNION ALL {migrated} UNION ALL "
        "SELECT best_as FROM islands WHERE run_id = :run AND island = :seeds AND island != :island)",
        {
            "run": node.run_id,
            "island": node.island,
            "id": node.id,
            "parent": node.parent_id,
            "episode": node.episode_id,
            "seeds": SEEDS,
        },
    )
    assert row is not None
    return row["parent"], row["best"]


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
    """Tell whether the node came to the island before."""
    return bool(
        store.rows(
            "SELECT 1 FROM elite_migrations WHERE run_id = :run AND to_island = :island AND node_id = :node",
            {"run": node.run_id, "island": island, "node": node.id},
        )
    )
