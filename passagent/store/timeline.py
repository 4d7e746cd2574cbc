"""The events of a run, in order, read from the rows of the store.

Rows are followed by their ids, which SQLite's one writer hands out in the order of the commits. Rows that are
still open are looked at again: no clock decides what is new.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from passagent.events import (
    EpisodeBegun,
    EpisodeEnded,
    Event,
    HintWritten,
    Joined,
    Judged,
    Left,
    MeasuredAgain,
    Migrated,
    Noted,
    OnEvent,
    Proposed,
    Replied,
    RequestFailed,
)  # fmt: skip
from passagent.store.database import Store, now

_ORDER = (
    Joined, Migrated, EpisodeBegun, Replied, RequestFailed, Proposed, Judged, EpisodeEnded, MeasuredAgain,
    HintWritten, Left,
)  # fmt: skip
"""The order of events of the same millisecond."""


@dataclass
class Seen:
    """How far a run was followed."""

    last: dict[str, int] = field(default_factory=dict)
    """For each table: the newest row that was looked at."""
    open: dict[str, dict[int, int]] = field(default_factory=dict)
    """For each table: the rows that more will happen to, with how many of their events were returned."""


class _Source(NamedTuple):
    """A table whose rows become events."""

    key: str
    """The column that grows with each new row."""
    is_open: str
    """SQL condition that holds while more will happen to a row."""
    query: str
    """Selects the fields of the events, by their names."""
    stages: tuple[tuple[type[Event], str], ...]
    """Event and the column with its time, null until it has happened."""


_SOURCES = {
    "sessions": _Source(
        "sessions.id",
        "left_at IS NULL",
        "SELECT owner, version, json(changes) AS changes, joined_at, left_at, left_because FROM sessions",
        (
            (Joined, "joined_at"),
            (Left, "left_at"),
        ),
    ),
    "episodes": _Source(
        "episodes.id",
        "episodes.state = 'running'",
        "SELECT episodes.number AS episode, "
        "episodes.island, episodes.model, episodes.parent_id AS parent, parents.as_score AS parent_as, "
        "parents.status AS parent_status, migration AS reason, parents.id AS node, "
        "parents.island AS from_island, episodes.island AS to_island, "
        "CASE WHEN migration IS NOT NULL THEN episodes.created_at END AS migrated_at, "
        "CASE WHEN episodes.model IS NOT NULL THEN episodes.created_at END AS begun_at, "
        "episodes.finished_at, end_reason, steps, best_node, best_as, gain FROM episodes "
        "LEFT JOIN nodes AS parents ON parents.id = episodes.parent_id",
        (
            (Migrated, "migrated_at"),
            (EpisodeBegun, "begun_at"),
            (EpisodeEnded, "finished_at"),
        ),
    ),
    "calls": _Source(
        "calls.id",
        "calls.state = 'started'",
        "SELECT number AS episode, calls.island, role, "
        "calls.model, attempt, latency_s, calls.input_tokens, calls.output_tokens, cost, error, calls.state, "
        "CASE WHEN calls.state = 'done' THEN calls.finished_at END AS replied_at, "
        "CASE WHEN calls.state != 'done' THEN calls.finished_at END AS failed_at "
        "FROM calls JOIN episodes ON episodes.id = episode_id",
        (
            (Replied, "replied_at"),
            (RequestFailed, "failed_at"),
        ),
    ),
    "nodes": _Source(
        "nodes.id",
        "nodes.state != 'done'",
        "SELECT nodes.id AS node, nodes.island, "
        "episodes.number AS episode, nodes.status, nodes.as_score, nodes.note, nodes.repeat_of, "
        "nodes.parent_id AS parent, parents.as_score AS parent_as, parents.status AS parent_status, "
        "nodes.diagnosis, nodes.created_at, nodes.evaluated_at, "
        # an equal one may have been waited for: its evaluation is younger than the node
        "evaluations.created_at < nodes.created_at OR EXISTS (SELECT 1 FROM nodes AS equal "
        "WHERE substr(equal.canonical_key, 1, 16) = substr(nodes.canonical_key, 1, 16) "
        "AND equal.run_id = nodes.run_id AND equal.evaluation_id = nodes.evaluation_id "
        "AND equal.evaluated_at < nodes.evaluated_at) AS from_store "
        "FROM nodes JOIN episodes ON episodes.id = nodes.episode_id "
        "LEFT JOIN nodes AS parents ON parents.id = nodes.parent_id "
        "LEFT JOIN evaluations ON evaluations.id = nodes.evaluation_id",
        (
            (Proposed, "created_at"),
            (Judged, "evaluated_at"),
        ),
    ),
    "confirmations": _Source(
        "confirmations.evaluation_id",
        "0",
        "SELECT node_id AS node, round, evaluations.status, evaluations.as_score, "
        "nodes.as_score AS first_as, evaluations.created_at AS measured_at "
        "FROM confirmations JOIN nodes ON nodes.id = node_id "
        "JOIN evaluations ON evaluations.id = confirmations.evaluation_id",
        ((MeasuredAgain, "measured_at"),),
    ),
    "distilled_hints": _Source(
        "distilled_hints.episode_id",
        "distilled_hints.state = 'wanted'",
        "SELECT number AS episode, island, hint_id AS hint, "
        "written_at FROM distilled_hints JOIN episodes ON episodes.id = episode_id",
        ((HintWritten, "written_at"),),
    ),
}


def _as_is(value: Any) -> Any:
    return value


def _from_json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


_READ: dict[str, Callable[[Any], Any]] = {"changes": _from_json, "diagnosis": _from_json, "from_store": bool}
"""Columns that SQLite returns as text or as a number."""

_LAST = "SELECT " + ", ".join(
    f"(SELECT coalesce(max({source.key}), 0) FROM {table}) AS {table}" for table, source in _SOURCES.items()
)


def newest(store: Store, run_id: str, limit: int) -> tuple[list[Event], Seen]:
    """The last `limit` events in order, and from where to go on with `since`."""
    events, position = list[Event](), Seen(_last(store))
    for table, source in _SOURCES.items():
        some = f"SELECT {source.key} FROM {table} WHERE run_id = :run ORDER BY 1 DESC LIMIT :limit"
        where = (
            f"{table}.run_id = :run AND {source.key} <= :last "
            f"AND ({source.key} IN ({some}) OR {source.is_open})"
        )
        bounds = {"run": run_id, "limit": limit, "last": position.last[table]}
        events += _take(position, table, source, _rows(store, source, where, bounds))
    return _in_order(events)[max(0, len(events) - limit) :], position


def since(store: Store, run_id: str, position: Seen) -> list[Event]:
    """The events since `seen` was brought up to date, in order; `seen` is brought up to date."""
    events, last = list[Event](), _last(store)
    for table, source in _SOURCES.items():
        rows = []
        if position.open[table]:
            keys = ", ".join(map(str, position.open[table]))
            rows = _rows(store, source, f"{source.key} IN ({keys})", {})
        if last[table] > position.last[table]:
            # the plus keeps SQLite from the index on run_id: the few new rows are found by their ids
            where = f"+{table}.run_id = :run AND {source.key} > :seen AND {source.key} <= :last"
            bounds = {"run": run_id, "seen": position.last[table], "last": last[table]}
            rows += _rows(store, source, where, bounds)
        events += _take(position, table, source, rows)
    position.last = last
    return _in_order(events)


def _in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.at, _ORDER.index(type(event))))


def _last(store: Store) -> dict[str, int]:
    """The key of each table's newest row, 0 where it has none."""
    row = store.row(_LAST)
    assert row is not None
    return row


def _rows(store: Store, source: _Source, where: str, bounds: dict[str, Any]) -> list[dict[str, Any]]:
    columns = f"SELECT {source.key} AS id, {source.is_open} AS is_open, "
    return store.rows(f"{source.query.replace('SELECT ', columns, 1)} WHERE {where} ORDER BY 1", bounds)


def _take(position: Seen, table: str, source: _Source, rows: list[dict[str, Any]]) -> list[Event]:
    """The events of the rows that were not returned yet; `seen` takes them in."""
    new, returned = list[Event](), position.open.setdefault(table, {})
    for row in rows:
        reached = [stage for stage in source.stages if row[stage[1]] is not None]
        for kind, at in reached[returned.pop(row["id"], 0) :]:
            columns = {item.name: _READ.get(item.name, _as_is)(row[item.name]) for item in fields(kind)[1:]}
            new.append(kind(at=row[at], **columns))
        if row["is_open"]:
            returned[row["id"]] = len(reached)
    return new


class Follower:
    """Passes on what happens in a run from now on, each time that it is asked to look."""

    def __init__(self, store: Store, run_id: str, on_event: OnEvent | None) -> None:
        self._store, self._run_id = store, run_id
        self.follow(on_event)

    def follow(self, on_event: OnEvent | None) -> None:
        """Pass on to `on_event` what happens from now on; None: to nobody, and nothing is looked up."""
        self._on_event = on_event
        self._seen = None if on_event is None else newest(self._store, self._run_id, 0)[1]

    def look(self) -> None:
        """Pass on what is new. In an open transaction nothing is: it may be rolled back."""
        if self._on_event is None or self._seen is None or self._store.connection.in_transaction:
            return
        for event in since(self._store, self._run_id, self._seen):
            self._on_event(event)

    def tell(self, kind: type[Event], **about: Any) -> None:
        """Pass on what is new, then an event that is not stored."""
        self.look()
        if self._on_event is not None:
            self._on_event(kind(at=now(), **about))

    def note(self, message: str) -> None:
        """Pass on what is new, then something for a person to know."""
        self.tell(Noted, message=message)
