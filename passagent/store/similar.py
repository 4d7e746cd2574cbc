"""Past work on similar tasks: found by the pairs of operators that follow each other in both.

Two operator sequences are as similar as the sets of their pairs, beginning and end among them (Jaccard).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple

from passagent.store.database import Store

RAREST = 4
"""Pairs of a task by which others are looked for, those that the fewest tasks have."""


MOST = 100
"""Tasks that are looked at, those with the rarest pairs: so that a question costs the same among many."""


class Similar(NamedTuple):
    """A task that was searched before."""

    task: str
    """Its name."""
    task_key: str
    similarity: float
    """Of the operator sequences, 0 to 1."""
    run_id: str
    """The run that found its best candidate."""
    node_id: int
    """That candidate."""
    as_score: float


_EDGE = "|"
"""Stands before the first operator and behind the last one."""


def pairs_of(operators: Sequence[str]) -> list[str]:
    """The distinct pairs of neighbours, in order of their names."""
    words = [_EDGE, *operators, _EDGE]
    return sorted({f"{first} {second}" for first, second in itertools.pairwise(words)})


def add_task(store: Store, task_key: str, operators: Sequence[str]) -> None:
    """Let a task be found; a repeated call changes nothing. To be called in a transaction."""
    names = {"key": task_key, "pairs": json.dumps(pairs_of(operators))}
    added = store.execute(
        "INSERT OR IGNORE INTO tasks (key, pairs) VALUES (:key, json_array_length(:pairs))", names
    )
    if added.rowcount:
        store.execute(
            "INSERT INTO operator_pairs (pair, tasks) SELECT value, 1 FROM json_each(:pairs) WHERE true "
            "ON CONFLICT (pair) DO UPDATE SET tasks = tasks + 1",
            names,
        )
        store.execute(
            "INSERT INTO task_pairs (pair, task_key) SELECT value, :key FROM json_each(:pairs)", names
        )


def similar_tasks(
    store: Store, operators: Sequence[str], target: str, limit: int, without: str | None = None
) -> list[Similar]:
    """The tasks most like a sequence of operators for which something correct was found, the nearest first.

    `target`: `cpu` or `cuda`, where it was found; `without`: the key of a task that is left out. Tasks that
    share none of the rarest pairs are not seen.
    """
    pairs = pairs_of(operators)
    rows = store.rows(
        "WITH asked AS (SELECT pair FROM operator_pairs WHERE pair IN (SELECT value FROM json_each(:pairs)) "
        "ORDER BY tasks, pair LIMIT :rarest), "
        "found AS (SELECT DISTINCT task_key FROM asked CROSS JOIN task_pairs USING (pair) LIMIT :most), "
        "shared AS (SELECT task_key, tasks.pairs, (SELECT count(*) FROM json_each(:pairs) JOIN task_pairs "
        "ON task_pairs.pair = value AND task_pairs.task_key = found.task_key) AS n "
        "FROM found JOIN tasks ON tasks.key = task_key WHERE task_key IS NOT :without), "
        "nearest AS (SELECT task_key, 1.0 * n / (:count + pairs - n) AS similarity FROM shared "
        "WHERE EXISTS (SELECT 1 FROM runs JOIN islands ON run_id = runs.id "
        "WHERE task_key = shared.task_key AND best_as IS NOT NULL "
        "AND (device = :target OR device GLOB :target || ':*')) "
        "ORDER BY similarity DESC, task_key LIMIT :limit) "
        "SELECT task, nearest.task_key, similarity, run_id, best_node AS node_id, max(best_as) AS as_score "
        "FROM nearest JOIN runs USING (task_key) JOIN islands ON run_id = runs.id "
        "WHERE best_as IS NOT NULL AND (device = :target OR device GLOB :target || ':*') "
        "GROUP BY nearest.task_key ORDER BY similarity DESC, nearest.task_key",
        {
            "pairs": json.dumps(pairs),
            "count": len(pairs),
            "rarest": RAREST,
            "most": MOST,
            "without": without,
            "limit": limit,
            "target": target,
        },
    )
    return [Similar(**row) for row in rows]
