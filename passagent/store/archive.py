"""The archive of each island: the best correct node of every behaviour (MAP-Elites: Mouret and Clune 2015).

A behaviour is what a candidate fuses, in how many kernels, in which language. The cells are kept up to date
as nodes are judged, so that nothing looks at all nodes of a run.
"""

from __future__ import annotations

from passagent.store.database import Store
from passagent.store.nodes import UNTIMED, Node


def add(store: Store, node: Node, island: int) -> None:
    """Let `node` into the island's archive if it is correct and the best of its behaviour so far."""
    if node.status != "ok" or node.behaviour is None:
        return
    store.execute(
        "INSERT INTO archive (run_id, island, behaviour, node_id, as_score, number, place) "
        "VALUES (:run, :island, :behaviour, :node, :score, :number, :place) "
        "ON CONFLICT (run_id, island, behaviour) DO UPDATE SET node_id = excluded.node_id, "
        "as_score = excluded.as_score, number = excluded.number, place = excluded.place "
        "WHERE excluded.as_score > as_score",
        {
            "run": node.run_id,
            "island": island,
            "behaviour": node.behaviour,
            "node": node.id,
            "score": UNTIMED if node.as_score is None else node.as_score,
            "number": node.number,
            "place": node.place,
        },
    )


def cells(store: Store, run_id: str, island: int, limit: int) -> list[Node]:
    """The best nodes of different behaviours, at most `limit`, the best first."""
    return store.all(
        Node,
        "SELECT nodes.* FROM archive JOIN nodes ON nodes.id = node_id WHERE archive.run_id = :run "
        "AND archive.island = :island ORDER BY archive.as_score DESC, archive.number, archive.place "
        "LIMIT :limit",
        {"run": run_id, "island": island, "limit": limit},
    )
