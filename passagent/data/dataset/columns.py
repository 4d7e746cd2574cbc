"""What is known of every example before its conversation is read: the columns that a selection may name.

COLUMNS is the list that docs/training.md explains. They lie in a table of SQLite's, so that an expression
over them is SQL, with its rules for what is unknown (NULL).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal

from passagent.errors import UsageError
from passagent.store import evaluations
from passagent.store.database import Store
from passagent.store.runs import CLIENTS

By = Literal["episode", "step"]

COLUMNS = {
    "id": "TEXT",
    "run": "TEXT",
    "episode": "INTEGER",
    "node": "INTEGER",
    "trial": "INTEGER",
    "task": "TEXT",
    "task_key": "TEXT",
    "operators": "TEXT",
    "model": "TEXT",
    "device": "TEXT",
    "evaluator_version": "TEXT",
    "role": "TEXT",
    "status": "TEXT",
    "as_score": "REAL",
    "start_as": "REAL",
    "first_as": "REAL",
    "gain": "REAL",
    "sure_gain": "REAL",
    "steps": "INTEGER",
    "evaluations": "INTEGER",
    "correct": "INTEGER",
    "recovered": "INTEGER",
    "input_tokens": "INTEGER",
    "output_tokens": "INTEGER",
    "cost": "REAL",
    "end_reason": "TEXT",
    "partial": "INTEGER",
    "created_at": "TEXT",
}
"""Name to SQLite type."""

_EPISODES = """
SELECT e.id AS episode_id, r.id || '/' || e.number AS id, r.id AS run, e.number AS episode,
    NULL AS node, r.trial, r.task, r.task_key, r.operators, coalesce(e.model, r.model) AS model,
    r.device, i.role,
    r.subgraphs, e.parent_id,
    CASE WHEN e.best_as IS NULL THEN (SELECT n.status FROM nodes n WHERE n.episode_id = e.id
        AND n.state = 'done' ORDER BY n.place DESC LIMIT 1) ELSE 'ok' END AS status,
    e.best_as AS as_score,
    (SELECT p.as_score FROM nodes p WHERE p.id = e.parent_id AND p.status = 'ok') AS start_as,
    (SELECT n.as_score FROM nodes n WHERE n.episode_id = e.id AND n.status = 'ok' AND n.place = 1)
        AS first_as,
    e.gain, e.steps,
    (SELECT count(*) FROM nodes n WHERE n.episode_id = e.id AND n.state = 'done') AS evaluations,
    (SELECT count(*) FROM nodes n WHERE n.episode_id = e.id AND n.status = 'ok') AS correct,
    EXISTS (SELECT 1 FROM nodes a JOIN nodes b USING (episode_id) JOIN nodes c USING (episode_id)
        WHERE episode_id = e.id AND a.place < b.place AND b.place < c.place
        AND a.status = 'ok' AND b.status != 'ok' AND c.status = 'ok') AS recovered,
    e.input_tokens, e.output_tokens,
    (SELECT sum(cost) FROM calls WHERE calls.episode_id = e.id) AS cost,
    e.end_reason, r.model = :clients AS partial, e.created_at,
    (SELECT group_concat(DISTINCT evaluator_version) FROM nodes n JOIN evaluations v ON v.id = n.evaluation_id
        JOIN conditions ON conditions.id = v.conditions_id WHERE n.episode_id = e.id) AS evaluator_version
FROM episodes e JOIN runs r ON r.id = e.run_id
JOIN islands i ON i.run_id = e.run_id AND i.island = e.island
WHERE e.state = 'done' AND e.number > 0 AND EXISTS (SELECT 1 FROM steps WHERE episode_id = e.id)
ORDER BY e.id
"""
_NODES = """
SELECT id, call_id, status, as_score, candidate_key AS files, evaluation_id, repeat_of, place FROM nodes
WHERE episode_id = :episode AND state = 'done' ORDER BY place
"""


@dataclass(frozen=True)
class Revision:
    """A candidate that an episode had evaluated, and what it gained over the best correct one before."""

    node: int
    status: str
    as_score: float | None
    low: float | None
    """Lower end of the interval of its AS, and `high`."""
    high: float | None
    before: float
    """AS of the best correct one before; of eager itself (1) where there is none."""
    before_high: float
    files: str
    """Candidate.key, and that of its files in the store."""
    evaluation_id: int | None
    advantage: float | None = None
    """Its return less the mean return of the group's other episodes at the same place; None: no others."""
    returns: float = 0.0
    """Of the rewards from it on."""

    @property
    def gain(self) -> float | None:
        """ln(AS / AS before); None unless it is correct."""
        return math.log(self.as_score / self.before) if self.status == "ok" and self.as_score else None

    @property
    def reward(self) -> float:
        """The gain that the intervals leave no doubt of: ln(low / high before), at least 0."""
        if self.status != "ok" or not self.low:
            return 0.0
        return max(0.0, math.log(self.low / self.before_high))


@dataclass(frozen=True)
class Told:
    """An episode's columns and its revisions."""

    episode_id: int
    columns: dict[str, Any]
    subgraphs: tuple[str, ...]
    """sha256 of each subgraph's model.py."""
    group: tuple[Any, ...]
    """Equal for trials of one thing: the same task, model and start."""
    revisions: tuple[Revision, ...]
    store: Store
    """The database that holds it."""


def read_episodes(stores: Iterable[Store]) -> list[Told]:
    """Read every finished episode of the databases, with returns and advantages over its group.

    Raises UsageError if an episode is in two of them.
    """
    episodes: dict[str, Told] = {}
    for store in stores:
        for told in _read(store):
            name = told.columns["id"]
            if name in episodes:
                places = f"{episodes[name].store.runs_dir} and in {store.runs_dir}"
                raise UsageError(f"episode {name} is in {places}: leave one of them out")
            episodes[name] = told
    return with_advantages(list(episodes.values()))


def with_advantages(told: list[Told]) -> list[Told]:
    """Every revision with its return and its leave-one-out advantage (TRLOO: Dr. Kernel, 2602.05885)."""
    groups = dict[tuple[Any, ...], list[list[float]]]()
    for one in told:
        groups.setdefault(one.group, []).append(returns_of(one))
    totals = {
        group: [math.fsum(column) for column in zip_longest(*returns, fillvalue=0.0)]
        for group, returns in groups.items()
    }
    return [_judged(one, totals[one.group], len(groups[one.group])) for one in told]


def _read(store: Store) -> Iterator[Told]:
    for row in store.rows(_EPISODES, {"clients": CLIENTS}):
        episode_id, parent = row.pop("episode_id"), row.pop("parent_id")
        subgraphs, operators = json.loads(row.pop("subgraphs")), json.loads(row["operators"])
        revisions = tuple(_revisions(store, episode_id, row["start_as"]))
        best = max((one.low for one in revisions if one.status == "ok" and one.low), default=None)
        sure = None if best is None else math.log(best / (row["start_as"] or 1.0))
        yield Told(
            episode_id,
            row | {"operators": " ".join(operators), "sure_gain": sure},
            tuple(subgraphs),
            (row["task_key"], row["model"], row["device"], parent and (store.runs_dir, parent)),
            revisions,
            store,
        )


def _revisions(store: Store, episode_id: int, start: float | None) -> Iterator[Revision]:
    before = before_high = start or 1.0
    for row in store.rows(_NODES, {"episode": episode_id}):
        low = high = row["as_score"]
        if row["status"] == "ok" and row["evaluation_id"] is not None:
            found = evaluations.get_evaluation(store, row["evaluation_id"], samples=False)
            low, high = found["as_low"] or low, found["as_high"] or high
        yield Revision(
            row["id"],
            row["status"],
            row["as_score"],
            low,
            high,
            before,
            before_high,
            row["files"],
            row["evaluation_id"],
        )
        if row["status"] == "ok" and row["as_score"] and row["as_score"] > before:
            before, before_high = row["as_score"], high or row["as_score"]


def _judged(one: Told, totals: list[float], size: int) -> Told:
    """With return and advantage of each revision.

    totals: of the returns at each place over the `size` episodes of the group.
    """
    own = returns_of(one)
    found = []
    for place, revision in enumerate(one.revisions):
        advantage = own[place] - (totals[place] - own[place]) / (size - 1) if size > 1 else None
        found.append(replace(revision, returns=own[place], advantage=advantage))
    return replace(one, revisions=tuple(found))


def returns_of(one: Told) -> list[float]:
    """Of each revision the sum of the rewards from it on."""
    rewards = [revision.reward for revision in one.revisions]
    return [math.fsum(rewards[place:]) for place in range(len(rewards))]


def of_step(told: Told, revision: Revision) -> dict[str, Any]:
    """The columns of the step that made `revision`."""
    return told.columns | {
        "id": f"{told.columns['id']}/{revision.node}",
        "node": revision.node,
        "status": revision.status,
        "as_score": revision.as_score if revision.status == "ok" else None,
        "start_as": revision.before,
        "gain": revision.gain,
        "sure_gain": None
        if revision.gain is None or not revision.low
        else math.log(revision.low / revision.before_high),
    }


def new_table() -> sqlite3.Connection:
    """An empty table `examples` with COLUMNS, in memory."""
    table = sqlite3.connect(":memory:")
    table.row_factory = sqlite3.Row
    table.execute(f"CREATE TABLE examples ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})")
    return table


def add_rows(table: sqlite3.Connection, rows: Iterator[dict[str, Any]]) -> None:
    """Put examples' columns into the table."""
    table.executemany(
        f"INSERT INTO examples VALUES ({', '.join(':' + name for name in COLUMNS)})",
        ({name: row[name] for name in COLUMNS} for row in rows),
    )
