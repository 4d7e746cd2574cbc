"""Which examples of a database are exported: an expression over their columns, and shares that limit it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from passagent.data.dataset.columns import COLUMNS, By, Revision, Told, add_rows, new_table, of_step
from passagent.errors import UsageError, nearest

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


@dataclass(frozen=True)
class Selection:
    """What is asked for."""

    keep: str | None = None
    """A condition over COLUMNS, as SQLite writes one; None: all."""
    by: By = "episode"
    best_of: int | None = None
    """At most so many of a task, those with the best AS."""
    per_sequence: int | None = None
    """At most so many of an operator sequence, those with the best AS."""

    @property
    def words(self) -> dict[str, Any]:
        """What was asked for, without what was not."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Chosen:
    """An example to be exported."""

    told: Told
    revision: Revision | None
    """The step's; None: the whole episode."""
    columns: dict[str, Any]


def select(episodes: list[Told], selection: Selection) -> list[Chosen]:
    """The examples that `selection` asks for, in the order of the database. Raises UsageError."""
    candidates = list(_candidates(episodes, selection.by))
    wanted = _ids((one.columns for one in candidates), selection)
    return [one for one in candidates if one.columns["id"] in wanted]


def failures(episodes: list[Told]) -> list[Chosen]:
    """The episodes that left nothing correct: negative examples."""
    return [Chosen(one, None, one.columns) for one in episodes if one.columns["as_score"] is None]


def _candidates(episodes: list[Told], by: By) -> Iterator[Chosen]:
    """What may be chosen; of steps those that stayed correct and gained more than their interval."""
    for told in episodes:
        if by == "episode":
            yield Chosen(told, None, told.columns)
            continue
        for revision in told.revisions:
            if revision.reward > 0:
                yield Chosen(told, revision, of_step(told, revision))


def _ids(rows: Iterator[dict[str, Any]], selection: Selection) -> set[str]:
    table = new_table()
    add_rows(table, rows)
    table.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
    query = f"SELECT id, task_key, operators, as_score FROM examples WHERE ({selection.keep or 'true'}\n)"
    for column, most in (("task_key", selection.best_of), ("operators", selection.per_sequence)):
        if most is not None:
            query = (
                f"SELECT id, task_key, operators, as_score FROM (SELECT *, row_number() OVER "
                f"(PARTITION BY {column} ORDER BY as_score DESC NULLS LAST, id) AS rank FROM ({query})) "
                f"WHERE rank <= {most}"
            )
    try:
        return {row["id"] for row in table.execute(query)}
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise UsageError(f"--keep '{selection.keep}': {_explained(str(error))}") from error


def _explained(message: str) -> str:
    """What SQLite says, with the nearest column or all of them."""
    unknown = message.removeprefix("no such column: ")
    if unknown == message:
        return "only conditions over columns" if message == "not authorized" else message
    return f"no column '{unknown}'{nearest(unknown, list(COLUMNS))}"
