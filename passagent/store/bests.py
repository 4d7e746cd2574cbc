"""The best nodes of islands, what was known of them before, and elites that moved between islands."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.database import Store
from passagent.store.nodes import UNTIMED, Node, get_node, of_episode
from passagent.store.runs import SEEDS

_MIGRANTS = (
    "FROM episodes JOIN nodes ON nodes.id = episodes.parent_id "
    "WHERE episodes.run_id = :run AND episodes.island = :island AND migration IS NOT NULL"
)
"""Elites of other islands that the island's episodes started from."""


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
        f"UNION ALL SELECT * FROM (SELECT nodes.* {_MIGRANTS} "
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
        f"UNION ALL {own_nodes.format(':seeds')} UNION ALL SELECT nodes.as_score {_MIGRANTS})",
        {"run": run_id, "island": island, "number": number, "seeds": SEEDS},
    )
    return row["best"] if row else None


def as_before(store: Store, node: Node) -> tuple[float | None, float | None]:
    """The AS of the node's parent, if that is correct; and the best that its island knew of when the node was
    made: as its episode began, see best_known, or of its episode's earlier nodes.
    """
    parent = None if node.parent_id is None else get_node(store, node.parent_id)
    same_episode = of_episode(store, node.episode_id)
    earlier = [other for other in same_episode if other.id < node.id and other.status == "ok"]
    scores = [best_known(store, node.run_id, node.island, node.number)]
    scores += [other.as_score for other in earlier if other.repeat_of is None]
    best = max((score for score in scores if score is not None and score != UNTIMED), default=None)
    return parent.as_score if parent and parent.status == "ok" else None, best


@dataclass(frozen=True)
class EliteMigration:
    """An episode that started from another island's elite."""

    from_island: int
    to_island: int
    node_id: int
    reason: str


def list_migrations(store: Store, run_id: str) -> list[EliteMigration]:
    """All migrations of a run in order."""
    return store.all(
        EliteMigration,
        "SELECT nodes.island AS from_island, episodes.island AS to_island, nodes.id AS node_id, "
        "migration AS reason FROM episodes JOIN nodes ON nodes.id = episodes.parent_id "
        "WHERE episodes.run_id = :run AND migration IS NOT NULL ORDER BY episodes.id",
        {"run": run_id},
    )


def has_migrated(store: Store, node: Node, island: int) -> bool:
    """Tell whether the node came to the island before."""
    moved = list_migrations(store, node.run_id)
    return any((migration.node_id, migration.to_island) == (node.id, island) for migration in moved)
