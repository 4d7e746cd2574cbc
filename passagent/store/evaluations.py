"""Evaluations, each stored whole: an equal candidate on the same task and machine is not evaluated again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from passagent.errors import PassagentError
from passagent.store.database import Store, now
from passagent.store.messages import remember
from passagent.store.packing import (
    PackedResult,
    needs_example,
    pack_result,
    text_of,
    unpack_figures,
    unpack_result,
)

PIECES = 1 << 20
"""The samples of evaluation n have the ids from n times this on."""
_EXAMPLES = 64
"""Examples that are kept in memory: a process may work on thousands of tasks."""
_PIECE = 496
"""Bytes of samples in a row: eight fill a page of the database. A row as long as most samples are would leave
a third of it empty."""


class Stored(NamedTuple):
    """An evaluation in the store."""

    id: int
    result: dict[str, Any]
    """Evaluation as plain data."""
    measured_at: str
    """ISO 8601, UTC."""


def add_evaluation(
    store: Store,
    run_id: str | None,
    *,
    task_key: str,
    environment: str,
    result: dict[str, Any],
    candidate_key: str,
    packed: PackedResult | None = None,
) -> int:
    """Store an evaluation (Evaluation as plain data), charge it to the run, if any, and return its id.

    `packed`: the result by `pack`, where a transaction is open that others wait for. `environment` names
    the machine and the protocol: results of different ones are never exchanged.
    """
    packed = packed or pack(store, task_key, environment, result)
    with store.transaction():
        evaluation_id = _insert(store, task_key, environment, result, candidate_key, packed.head)
        pieces = range(0, len(packed.samples), _PIECE)
        store.execute_many(
            "INSERT INTO samples (id, body) VALUES (:id, :body)",
            [
                {"id": evaluation_id * PIECES + place, "body": packed.samples[start : start + _PIECE]}
                for place, start in enumerate(pieces)
            ],
        )
        if run_id is not None:
            store.execute("UPDATE runs SET evaluations = evaluations + 1 WHERE id = :run", {"run": run_id})
    return evaluation_id


def pack(store: Store, task_key: str, environment: str, result: dict[str, Any]) -> PackedResult:
    """The result as it is stored: against the first correct one under its conditions."""
    row = store.row(
        "SELECT id FROM conditions WHERE task_key = :task AND evaluator_version = :version "
        "AND environment = :environment",
        {"task": task_key, "version": result["evaluator_version"], "environment": environment},
    )
    return pack_result(result, _example(store, row["id"]) if row else b"")


def _example(store: Store, conditions_id: int) -> bytes:
    """What results under these conditions are packed with; empty before the first."""
    if conditions_id not in store.examples:
        row = store.row("SELECT example FROM conditions WHERE id = :id", {"id": conditions_id})
        if row is None or row["example"] is None:
            return b""
        if store.db.conn.in_transaction:  # it may not be committed
            return text_of(row["example"])
        remember(store.examples, conditions_id, text_of(row["example"]), _EXAMPLES)
    return store.examples[conditions_id]


def _insert(
    store: Store, task_key: str, environment: str, result: dict[str, Any], candidate_key: str, head: bytes
) -> int:
    """The id of a new row, under its conditions, which are made the first time."""
    conditions = {"task": task_key, "version": result["evaluator_version"], "environment": environment}
    values = {
        "candidate": candidate_key,
        "status": result["status"],
        "score": result["as_score"],
        "seconds": result["seconds"],
        "result": head,
        "at": now(),
    }
    while True:
        added = store.execute(
            "INSERT INTO evaluations (conditions_id, candidate_key, status, as_score, seconds, result, "
            "created_at) SELECT id, :candidate, :status, :score, :seconds, :result, :at FROM conditions "
            "WHERE task_key = :task AND evaluator_version = :version AND environment = :environment",
            conditions | values,
        )
        if added.rowcount:
            assert added.lastrowid is not None
            if result["status"] == "ok" and not needs_example(head):
                store.execute(
                    "UPDATE conditions SET example = :head WHERE example IS NULL AND id = "
                    "(SELECT conditions_id FROM evaluations WHERE id = :id)",
                    {"head": head, "id": added.lastrowid},
                )
            return added.lastrowid
        store.execute(
            "INSERT INTO conditions (task_key, evaluator_version, environment) "
            "VALUES (:task, :version, :environment)",
            conditions,
        )


def find_evaluation(
    store: Store,
    *,
    candidate_key: str,
    task_key: str,
    evaluator_version: str,
    environment: str,
    stands: Callable[[dict[str, Any]], bool] = lambda result: True,
) -> Stored | None:
    """The newest evaluation of an equal candidate under equal conditions that `stands`.

    One that the machine failed never does.
    """
    rows = store.rows(
        "SELECT evaluations.id, result, conditions_id, created_at FROM evaluations "
        "JOIN conditions ON conditions.id = conditions_id "
        "WHERE substr(candidate_key, 1, 16) = substr(:candidate, 1, 16) AND +candidate_key = :candidate "
        "AND task_key = :task AND evaluator_version = :version AND environment = :environment "
        "AND status != 'infrastructure' ORDER BY evaluations.id DESC LIMIT 20",
        {
            "candidate": candidate_key,
            "task": task_key,
            "version": evaluator_version,
            "environment": environment,
        },
    )
    found = (Stored(row["id"], _whole(store, row), row["created_at"]) for row in rows)
    return next((s for s in found if stands(s.result)), None)


def is_unstable(result: dict[str, Any]) -> bool:
    """Whether a subgraph's timing stayed too noisy to be relied on."""
    return any(graph["unstable"] for graph in result["graphs"])


def rests_on_measurement(result: dict[str, Any]) -> bool:
    """Whether it is a refusal that another measurement may not repeat (result.Violation)."""
    return any(violation.get("measured") is not None for violation in result["violations"])


def get_evaluation(store: Store, evaluation_id: int) -> dict[str, Any]:
    """The result of this id."""
    row = store.row("SELECT id, result, conditions_id FROM evaluations WHERE id = :id", {"id": evaluation_id})
    if row is None:
        raise PassagentError(f"{evaluation_id}: no such evaluation in {store.runs_dir}")
    return _whole(store, row)


def get_figures(store: Store, evaluation_id: int) -> dict[str, Any]:
    """The result of this id without its timing samples, which are most of what there is to read."""
    row = store.row("SELECT result, conditions_id FROM evaluations WHERE id = :id", {"id": evaluation_id})
    if row is None:
        raise PassagentError(f"{evaluation_id}: no such evaluation in {store.runs_dir}")
    example = _example(store, row["conditions_id"]) if needs_example(row["result"]) else b""
    return unpack_figures(row["result"], example)


def _whole(store: Store, row: dict[str, Any]) -> dict[str, Any]:
    """The result of a row with its samples."""
    first = row["id"] * PIECES
    pieces = store.rows(
        "SELECT body FROM samples WHERE id >= :first AND id < :end ORDER BY id",
        {"first": first, "end": first + PIECES},
    )
    example = _example(store, row["conditions_id"]) if needs_example(row["result"]) else b""
    return unpack_result(row["result"], b"".join(piece["body"] for piece in pieces), example)
