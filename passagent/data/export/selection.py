"""Selection of the examples to export: an expression over their columns, and shares that limit it.

COLUMNS, which docs/training.md explains, are known of an example before its conversation is read. They lie in
a table of SQLite, so that an expression over them is SQL, with its rules for unknown values (NULL).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal

from passagent.errors import UsageError, nearest
from passagent.store import evaluations
from passagent.store.database import Store
from passagent.store.runs import CLIENTS

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
SELECT id AS node, status, as_score, candidate_key AS files, evaluation_id FROM nodes
WHERE episode_id = :episode AND state = 'done' ORDER BY place
"""


_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
"""The actions of SQLite that a condition may take."""


@dataclass(frozen=True)
class Revision:
    """A candidate that an episode had evaluated, and its gain over the best correct one before."""

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
    """The sum of the rewards from it on."""

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
class JudgedEpisode:
    """A finished episode: its columns and its revisions."""

    episode_id: int
    columns: dict[str, Any]
    subgraphs: tuple[str, ...]
    """sha256 of each subgraph's model.py."""
    group: tuple[Any, ...]
    """Equal for trials of one thing: the same task, model and start."""
    revisions: tuple[Revision, ...]
    store: Store
    """The database that holds it."""

    def step_columns(self, revision: Revision) -> dict[str, Any]:
        """Return the columns of the step that made `revision`."""
        is_known = revision.gain is not None and revision.low
        return self.columns | {
            "id": f"{self.columns['id']}/{revision.node}",
            "node": revision.node,
            "status": revision.status,
            "as_score": revision.as_score if revision.status == "ok" else None,
            "start_as": revision.before,
            "gain": revision.gain,
            "sure_gain": math.log((revision.low or 0.0) / revision.before_high) if is_known else None,
        }


@dataclass(frozen=True)
class Chosen:
    """An example to be exported."""

    episode: JudgedEpisode
    revision: Revision | None
    """The step's; None: the whole episode."""
    columns: dict[str, Any]

    @property
    def revisions(self) -> tuple[Revision, ...]:
        """The candidates that the example shows."""
        return self.episode.revisions if self.revision is None else (self.revision,)


def read_episodes(stores: Iterable[Store]) -> list[JudgedEpisode]:
    """Read every finished episode of the databases, with returns and advantages over its group.

    Raises UsageError if an episode is in two of them.
    """
    episodes: dict[str, JudgedEpisode] = {}
    for store in stores:
        for row in store.rows(_EPISODES, {"clients": CLIENTS}):
            episode = _read_episode(store, row)
            name = episode.columns["id"]
            if name in episodes:
                places = f"{episodes[name].store.runs_dir} and in {store.runs_dir}"
                raise UsageError(f"episode {name} is in {places}: leave one of them out")
            episodes[name] = episode
    return with_advantages(list(episodes.values()))


def _read_episode(store: Store, row: dict[str, Any]) -> JudgedEpisode:
    episode_id, parent = row.pop("episode_id"), row.pop("parent_id")
    subgraphs, operators = json.loads(row.pop("subgraphs")), json.loads(row["operators"])
    revisions = tuple(_read_revisions(store, episode_id, row["start_as"]))
    best = max(
        (revision.low for revision in revisions if revision.status == "ok" and revision.low), default=None
    )
    sure_gain = None if best is None else math.log(best / (row["start_as"] or 1.0))
    return JudgedEpisode(
        episode_id,
        row | {"operators": " ".join(operators), "sure_gain": sure_gain},
        tuple(subgraphs),
        (row["task_key"], row["model"], row["device"], parent and (store.runs_dir, parent)),
        revisions,
        store,
    )


def _read_revisions(store: Store, episode_id: int, start: float | None) -> Iterator[Revision]:
    before = before_high = start or 1.0
    for row in store.rows(_NODES, {"episode": episode_id}):
        low = high = row["as_score"]
        if row["status"] == "ok" and row["evaluation_id"] is not None:
            figures = evaluations.get_evaluation(store, row["evaluation_id"], samples=False)
            low, high = figures["as_low"] or low, figures["as_high"] or high
        yield Revision(low=low, high=high, before=before, before_high=before_high, **row)
        if row["status"] == "ok" and row["as_score"] and row["as_score"] > before:
            before, before_high = row["as_score"], high or row["as_score"]


def with_advantages(episodes: list[JudgedEpisode]) -> list[JudgedEpisode]:
    """Give every revision its return and its leave-one-out advantage (TRLOO: Dr. Kernel, 2602.05885)."""
    groups = defaultdict[tuple[Any, ...], list[list[float]]](list)
    returns_of = []
    for episode in episodes:
        rewards = [revision.reward for revision in episode.revisions]
        returns_of.append([math.fsum(rewards[place:]) for place in range(len(rewards))])
        groups[episode.group].append(returns_of[-1])
    totals = {
        group: [math.fsum(column) for column in zip_longest(*returns, fillvalue=0.0)]
        for group, returns in groups.items()
    }
    judged = []
    for episode, returns in zip(episodes, returns_of, strict=True):
        others = len(groups[episode.group]) - 1
        revisions = []
        for revision, value, total in zip(episode.revisions, returns, totals[episode.group], strict=False):
            advantage = value - (total - value) / others if others else None
            revisions.append(replace(revision, returns=value, advantage=advantage))
        judged.append(replace(episode, revisions=tuple(revisions)))
    return judged


def select(
    episodes: list[JudgedEpisode],
    keep: str | None = None,
    by: Literal["episode", "step"] = "episode",
    best_of: int | None = None,
    per_sequence: int | None = None,
) -> list[Chosen]:
    """Choose examples, in the order of the database. Raises UsageError.

    keep: a condition over COLUMNS, as SQLite writes one; None: all. by: of steps, those are candidates that
    stayed correct and gained more than their interval. best_of, per_sequence: at most so many of a task, and
    of an operator sequence, those with the best AS.
    """
    candidates = [
        chosen
        for episode in episodes
        for chosen in (
            [Chosen(episode, None, episode.columns)]
            if by == "episode"
            else [Chosen(episode, r, episode.step_columns(r)) for r in episode.revisions if r.reward > 0]
        )
    ]
    query = f"SELECT id, task_key, operators, as_score FROM examples WHERE ({keep or 'true'}\n)"
    for column, most in (("task_key", best_of), ("operators", per_sequence)):
        if most is not None:
            query = (
                f"SELECT id, task_key, operators, as_score FROM (SELECT *, row_number() OVER "
                f"(PARTITION BY {column} ORDER BY as_score DESC NULLS LAST, id) AS rank FROM ({query})) "
                f"WHERE rank <= {most}"
            )
    table = sqlite3.connect(":memory:")
    table.execute(f"CREATE TABLE examples ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})")
    table.executemany(
        f"INSERT INTO examples VALUES ({', '.join(':' + name for name in COLUMNS)})",
        ({name: chosen.columns[name] for name in COLUMNS} for chosen in candidates),
    )
    table.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
    try:
        ids = {row[0] for row in table.execute(query)}
    except (sqlite3.Error, sqlite3.Warning) as error:
        message = str(error)
        unknown = message.removeprefix("no such column: ")
        if unknown != message:
            message = f"no column '{unknown}'{nearest(unknown, list(COLUMNS))}"
        elif message == "not authorized":
            message = "only conditions over columns"
        raise UsageError(f"--keep '{keep}': {message}") from error
    return [chosen for chosen in candidates if chosen.columns["id"] in ids]


def failures(episodes: list[JudgedEpisode]) -> list[Chosen]:
    """Choose the episodes that left nothing correct: negative examples."""
    wrong = [episode for episode in episodes if episode.columns["as_score"] is None]
    return [Chosen(episode, None, episode.columns) for episode in wrong]
