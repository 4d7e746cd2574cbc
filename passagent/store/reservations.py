"""Room in a run's budgets that model calls and evaluations under way hold, over all its processes.

What is held goes when the work is counted, or with the process that held it (participants.bury).
"""

from __future__ import annotations

from typing import NamedTuple

from passagent.store.database import Store, now


class Held(NamedTuple):
    """What all work under way may still take at most."""

    works: int
    """Calls and evaluations under way that hold something."""
    tokens: int
    cost: float
    """USD."""
    evaluations: int


def held(store: Store, run_id: str) -> Held:
    """The sums over the run's reservations."""
    row = store.row(
        "SELECT count(*) AS works, coalesce(sum(tokens), 0) AS tokens, coalesce(sum(cost), 0.0) AS cost, "
        "coalesce(sum(evaluations), 0) AS evaluations FROM reservations WHERE run_id = :run",
        {"run": run_id},
    )
    assert row is not None
    return Held(**row)


def reserve(store: Store, run_id: str, owner: str, tokens: int, cost: float, evaluations: int) -> int:
    """Hold so much for `owner`; the reservation's id. In the transaction that asked for `held`."""
    cursor = store.execute(
        "INSERT INTO reservations (run_id, owner, tokens, cost, evaluations, created_at) "
        "VALUES (:run, :owner, :tokens, :cost, :evaluations, :at)",
        {
            "run": run_id,
            "owner": owner,
            "tokens": tokens,
            "cost": cost,
            "evaluations": evaluations,
            "at": now(),
        },
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def release(store: Store, reservation_id: int) -> None:
    """Give the room back; twice does no harm."""
    store.execute("DELETE FROM reservations WHERE id = :id", {"id": reservation_id})
