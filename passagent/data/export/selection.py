"""Selection of the examples to export: an expression over their columns, and shares that limit it.

COLUMNS, which docs/training.md explains, are known of an example before its conversation is read. They lie in
a table of SQLite, so that an expression over them is SQL, with its rules for unknown values (NULL).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from passagent.errors import UsageError, nearest
from passagent.store import evaluations
from passagent.store.database import Store
from passagent.store.runs import CLIENTS

COLUMNS = (
    "id", "run", "episode", "node", "trial", "task", "task_key", "operators", "model", "device",
    "evaluator_version", "role", "status", "as_score", "start_as", "first_as", "gain", "sure_gain", "steps",
    "evaluations", "correct", "recovered", "input_tokens", "output_tokens", "cost", "end_reason", "partial",
    "created_at",
)  # fmt: skip
"""The columns that a condition may name."""

_EPISODES = (Path(__file__).parent / "episodes.sql").read_text(encoding="utf-8")
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
    """Lower end of the interval of its AS."""
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


@dataclass(frozen=True)
class Chosen:
    """An example to be exported."""

    episode: JudgedEpisode
    revision: Revision | None = None
    """The step's; None: the whole episode."""

    @property
    def revisions(self) -> tuple[Revision, ...]:
        """The candidates that the example shows."""
        return self.episode.revisions if self.revision is None else (self.revision,)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The episode's columns, or those of the step."""
        columns, revision = self.episode.columns, self.revision
        if revision is None:
            return columns
        is_known = revision.gain is not None and revision.low
        return columns | {
            "id": f"{columns['id']}/{revision.node}",
            "node": revision.node,
            "status": revision.status,
            "as_score": revision.as_score if revision.status == "ok" else None,
            "start_as": revision.before,
            "gain": revision.gain,
            "sure_gain": math.log((revision.low or 0.0) / revision.before_high) if is_known else None,
        }


@contextmanager
def reading_stores(runs_dirs: Sequence[str]) -> Iterator[list[Store]]:
    """Open the databases in `runs_dirs`, each of which stays in one state meanwhile. Raises UsageError."""
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(runs_dir, create=False)) for runs_dir in runs_dirs]
        for store in stores:
            stack.enter_context(store.reading())
        yield stores


def read_episodes(stores: Iterable[Store]) -> list[JudgedEpisode]:
    """Read every finished episode of the databases, with returns and advantages over its group.

    Raises UsageError if an episode is in two of them.
    """
    episodes: dict[str, JudgedEpisode] = {}
    for store in stores:
        for row in store.rows(_EPISODES, {"clients": CLIENTS}):
            name = row["id"]
            if name in episodes:
                places = f"{episodes[name].store.runs_dir} and in {store.runs_dir}"
                raise UsageError(f"episode {name} is in {places}: leave one of them out")
            episodes[name] = _read_episode(store, row)
    return with_advantages(list(episodes.values()))


def _read_episode(store: Store, row: dict[str, Any]) -> JudgedEpisode:
    episode_id, parent, subgraphs = row.pop("episode_id"), row.pop("parent_id"), row.pop("subgraphs")
    revisions = []
    before = before_high = row["start_as"] or 1.0
    for node in store.rows(_NODES, {"episode": episode_id}):
        low = high = node["as_score"]
        if node["status"] == "ok" and node["evaluation_id"] is not None:
            figures = evaluations.get_evaluation(store, node["evaluation_id"], samples=False)
            low, high = figures["as_low"] or low, figures["as_high"] or high
        revisions.append(Revision(low=low, before=before, before_high=before_high, **node))
        if node["status"] == "ok" and node["as_score"] and node["as_score"] > before:
            before, before_high = node["as_score"], high or node["as_score"]
    lows = [revision.low for revision in revisions if revision.status == "ok" and revision.low]
    return JudgedEpisode(
        episode_id,
        row
        | {
            "operators": " ".join(json.loads(row["operators"])),
            "sure_gain": math.log(max(lows) / (row["start_as"] or 1.0)) if lows else None,
        },
        tuple(json.loads(subgraphs)),
        (row["task_key"], row["model"], row["device"], parent and (store.runs_dir, parent)),
        tuple(revisions),
        store,
    )


def with_advantages(episodes: list[JudgedEpisode]) -> list[JudgedEpisode]:
    """Give every revision its return and its leave-one-out advantage (TRLOO: Dr. Kernel, 2602.05885)."""
    groups = defaultdict[tuple[Any, ...], list[int]](list)
    returns: list[list[float]] = []
    for number, episode in enumerate(episodes):
        rewards = [revision.reward for revision in episode.revisions]
        returns.append([math.fsum(rewards[place:]) for place in range(len(rewards))])
        groups[episode.group].append(number)
    judged = []
    for number, episode in enumerate(episodes):
        others = [returns[other] for other in groups[episode.group] if other != number]
        revisions = []
        for place, revision in enumerate(episode.revisions):
            value = returns[number][place]
            total = math.fsum(other[place] for other in others if place < len(other))
            advantage = value - total / len(others) if others else None
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
    candidates = [Chosen(episode) for episode in episodes]
    if by == "step":
        candidates = [
            Chosen(e, revision) for e in episodes for revision in e.revisions if revision.reward > 0
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
    table.execute(f"CREATE TABLE examples ({', '.join(COLUMNS)})")
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
