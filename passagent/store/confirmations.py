"""The second measurement of a run's finalists: the best of many noisy scores is a lucky one."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.database import Store, now
from passagent.store.nodes import Node


@dataclass(frozen=True)
class Confirmation:
    """A row of `confirmations`."""

    node_id: int
    run_id: str
    evaluation_id: int
    status: str
    as_score: float | None
    created_at: str


def finalists(store: Store, run_id: str, limit: int) -> list[Node]:
    """The run's best correct and timed nodes with distinct files, the best first."""
    rows = store.rows(
        "SELECT * FROM nodes WHERE id IN (SELECT min(id) FROM nodes WHERE run_id = :run AND status = 'ok' "
        "AND as_score IS NOT NULL GROUP BY candidate_key) ORDER BY as_score DESC, number, id LIMIT :limit",
        {"run": run_id, "limit": limit},
    )
    return [Node(**row) for row in rows]


def add_confirmation(
    store: Store, node: Node, evaluation_id: int, status: str, as_score: float | None
) -> Confirmation:
    """Store a finalist's second measurement."""
    with store.transaction():
        store.execute(
            "INSERT OR REPLACE INTO confirmations "
            "(node_id, run_id, evaluation_id, status, as_score, created_at) "
            "VALUES (:node, :run, :evaluation, :status, :score, :at)",
            {
                "node": node.id,
                "run": node.run_id,
                "evaluation": evaluation_id,
                "status": status,
                "score": as_score,
                "at": now(),
            },
        )
    confirmation = find_confirmation(store, node.id)
    assert confirmation is not None
    return confirmation


def find_confirmation(store: Store, node_id: int) -> Confirmation | None:
    """The node's second measurement, if it had one."""
    row = store.row("SELECT * FROM confirmations WHERE node_id = :id", {"id": node_id})
    return Confirmation(**row) if row else None


def score_of(store: Store, node: Node) -> float | None:
    """The node's AS: of its second measurement if it had one."""
    confirmation = find_confirmation(store, node.id)
    return confirmation.as_score if confirmation else node.as_score


def winner(store: Store, run_id: str) -> Node | None:
    """The correct node whose second measurement is best; without any, the node whose first one is."""
    row = store.row(
        "SELECT nodes.* FROM confirmations JOIN nodes ON nodes.id = node_id "
        "WHERE confirmations.run_id = :run AND confirmations.status = 'ok' "
        "ORDER BY confirmations.as_score DESC, number, node_id LIMIT 1",
        {"run": run_id},
    )
    if row is None:
        row = store.row(
            "SELECT * FROM nodes WHERE run_id = :run AND status = 'ok' AND repeat_of IS NULL "
            "AND id NOT IN (SELECT node_id FROM confirmations WHERE run_id = :run) "
            "ORDER BY as_score DESC NULLS LAST, number, id LIMIT 1",
            {"run": run_id},
        )
    return Node(**row) if row else None
