"""Evaluations, each stored whole: an equal candidate on the same task and machine is not evaluated again.

An evaluation is its JSON, compressed with zlib. The row also holds its timing samples, compressed by
themselves, and the key of its plans' files.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

from passagent.errors import PassagentError
from passagent.store.database import Store, now

_SAMPLES = ("eager_samples_ms", "compiled_samples_ms")


def pack_result(whole: dict[str, Any]) -> bytes:
    """An evaluation as it is stored, but for its samples and the key of its plans."""
    graphs = [graph | {name: () for name in _SAMPLES if graph.get(name)} for graph in whole["graphs"]]
    return _compress({key: value for key, value in whole.items() if key != "plans"} | {"graphs": graphs})


def _compress(data: Any) -> bytes:
    return zlib.compress(json.dumps(data).encode())


def add_evaluation(
    store: Store,
    run_id: str | None,
    *,
    task_key: str,
    environment: str,
    candidate_key: str,
    whole: dict[str, Any],
) -> int:
    """Store an evaluation on this task and environment, charge it to the run, if any; its id.

    `whole`: the evaluation as plain data. `environment` names the machine and the protocol: results of
    different ones are never exchanged.
    """
    samples = [{name: graph[name] for name in _SAMPLES if graph.get(name)} for graph in whole["graphs"]]
    with store.transaction():
        evaluation_id = store.insert(
            "evaluations",
            conditions_id=_conditions(store, task_key, whole["evaluator_version"], environment),
            candidate_key=candidate_key,
            result=pack_result(whole),
            samples=_compress(samples) if any(samples) else None,
            plans=whole.get("plans"),
            created_at=now(),
            **{name: whole[name] for name in ("status", "as_score", "seconds")},
        )
        if run_id is not None:
            store.execute("UPDATE runs SET evaluations = evaluations + 1 WHERE id = :run", {"run": run_id})
    return evaluation_id


def _conditions(store: Store, task_key: str, version: str, environment: str) -> int:
    """The id of the row for these conditions, a new one where there is none."""
    names = {"task_key": task_key, "evaluator_version": version, "environment": environment}
    row = store.row(
        "SELECT id FROM conditions WHERE task_key = :task_key AND evaluator_version = :evaluator_version "
        "AND environment = :environment",
        names,
    )
    return store.insert("conditions", **names) if row is None else int(row["id"])


def find_evaluations(
    store: Store, *, candidate_key: str, task_key: str, evaluator_version: str, environment: str
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """The evaluations of an equal candidate under equal conditions, the newest first.

    Of each its id, itself as plain data, and when it was stored.

    Those that the machine failed are left out.
    """
    rows = store.rows(
        "SELECT evaluations.id, result, samples, plans, created_at FROM evaluations "
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
    return ((row["id"], _whole(row), row["created_at"]) for row in rows)


def get_evaluation(store: Store, evaluation_id: int, samples: bool = True) -> dict[str, Any]:
    """The result of this id; without its timing `samples` it is read in a fraction of the time."""
    row = store.row(
        f"SELECT result, plans{', samples' if samples else ''} FROM evaluations WHERE id = :id",
        {"id": evaluation_id},
    )
    if row is None:
        raise PassagentError(f"{evaluation_id}: no such evaluation in {store.runs_dir}")
    return _whole(row)


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    """Return a stored result whole: the inverse of pack_result, with the columns of its row."""
    result: dict[str, Any] = json.loads(zlib.decompress(row["result"]))
    result["plans"] = row["plans"]
    if row.get("samples") is not None:
        for graph, samples in zip(result["graphs"], json.loads(zlib.decompress(row["samples"])), strict=True):
            graph.update(samples)
    return result
