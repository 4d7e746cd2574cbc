"""The search tree of a run as MCTS sees it: a row for each finished episode, kept up to date as rounds close.

A row stands for the candidate that an episode is remembered by: its best one, or the least grave of its
failures. It hangs below the row that the episode started from; node 0 is the task. `visits` counts the
episodes at and below a row, `correct` those of them that left a correct candidate, `sum_log_as` adds up the
ln(AS) of these. So what a whole subtree was worth is read from one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from passagent.store.database import Store

TASK = 0
"""The root's node_id."""

_UP = (
    "WITH RECURSIVE up (id) AS (SELECT :id UNION ALL SELECT parent_id FROM up JOIN tree "
    "ON tree.run_id = :run AND tree.node_id = up.id WHERE parent_id IS NOT NULL) "
)


class Place(NamedTuple):
    """A row of `tree`: the task or a candidate, and what the episodes at and below it came to."""

    node_id: int
    number: int
    """Of the episode."""
    visits: int
    """Episodes at and below it."""
    correct: int
    sum_log_as: float


class Outcome(NamedTuple):
    """What an episode left."""

    node_id: int | None
    """The candidate it is remembered by; None: it left none."""
    log_as: float | None
    """ln(AS); None if that is not correct."""


def settle(store: Store, run_id: str, last: int, outcome: Callable[[int], Outcome]) -> None:
    """Take in the episodes up to number `last`, all of them finished, in the order of their numbers.

    `outcome` says of an episode's id what it left.
    """
    with store.transaction():
        done = store.row(
            "SELECT number FROM tree WHERE run_id = :run AND node_id = :task", {"run": run_id, "task": TASK}
        )
        if done is None:
            _insert(store, run_id, TASK, None, -(2**31), None, visits=0)
            done = {"number": -(2**31)}
        if done["number"] >= last:
            return
        for row in store.rows(
            "SELECT id, number, parent_id FROM episodes WHERE run_id = :run AND number > :done "
            "AND number <= :last ORDER BY number",
            {"run": run_id, "done": done["number"], "last": last},
        ):
            parent = place_of(store, run_id, row["parent_id"])
            _take_in(store, run_id, row["number"], parent, outcome(row["id"]))
        store.execute(
            "UPDATE tree SET number = :last WHERE run_id = :run AND node_id = :task",
            {"last": last, "run": run_id, "task": TASK},
        )


def place_of(store: Store, run_id: str, node_id: int | None) -> int:
    """The row that an episode which started from `node_id` hangs below: its own, else the task's."""
    if node_id is None:
        return TASK
    key = {"run": run_id, "node": node_id}
    return node_id if store.row("SELECT 1 FROM tree WHERE run_id = :run AND node_id = :node", key) else TASK


def above(store: Store, run_id: str, node_id: int) -> list[int]:
    """The row itself and all above it, up to the task."""
    return [row["id"] for row in store.rows(f"{_UP} SELECT id FROM up", {"run": run_id, "id": node_id})]


def get(store: Store, run_id: str, node_id: int) -> Place:
    """A row."""
    row = store.row(
        "SELECT node_id, number, visits, correct, sum_log_as FROM tree "
        "WHERE run_id = :run AND node_id = :node",
        {"run": run_id, "node": node_id},
    )
    assert row is not None
    return Place(**row)


def children(store: Store, run_id: str, node_id: int) -> list[Place]:
    """The rows right below a row, in the order of their episodes."""
    rows = store.rows(
        "SELECT node_id, number, visits, correct, sum_log_as FROM tree "
        "WHERE run_id = :run AND parent_id = :node ORDER BY number",
        {"run": run_id, "node": node_id},
    )
    return [Place(**row) for row in rows]


def scale(store: Store, run_id: str) -> tuple[float, float] | None:
    """The smallest and the largest ln(AS) in the tree; None without a correct candidate."""
    ends = []
    for order in ("ASC", "DESC"):
        row = store.row(
            f"SELECT log_as FROM tree WHERE run_id = :run AND log_as IS NOT NULL "
            f"ORDER BY log_as {order} LIMIT 1",
            {"run": run_id},
        )
        if row is None:
            return None
        ends.append(row["log_as"])
    return ends[0], ends[1]


def _take_in(store: Store, run_id: str, number: int, parent: int, left: Outcome) -> None:
    """Hang an episode below `parent`, and count it there and at all rows above."""
    if left.node_id is not None:
        _insert(store, run_id, left.node_id, parent, number, left.log_as, visits=1)
    store.execute(
        f"{_UP} UPDATE tree SET visits = visits + 1, correct = correct + :correct, "
        "sum_log_as = sum_log_as + :log_as WHERE run_id = :run AND node_id IN (SELECT id FROM up)",
        {
            "run": run_id,
            "id": parent,
            "correct": int(left.log_as is not None),
            "log_as": left.log_as or 0.0,
        },
    )


def _insert(
    store: Store,
    run_id: str,
    node_id: int,
    parent: int | None,
    number: int,
    log_as: float | None,
    visits: int,
) -> None:
    store.execute(
        "INSERT INTO tree (run_id, node_id, parent_id, number, log_as, visits, correct, sum_log_as) "
        "VALUES (:run, :node, :parent, :number, :log_as, :visits, :correct, :sum)",
        {
            "run": run_id,
            "node": node_id,
            "parent": parent,
            "number": number,
            "log_as": log_as,
            "visits": visits,
            "correct": int(log_as is not None),
            "sum": log_as or 0.0,
        },
    )
