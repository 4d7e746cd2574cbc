"""The events of a run, in order, read from the rows of the store.

Rows are followed by their ids, which SQLite's one writer hands out in the order of the commits. Rows that are
still open are looked at again: no clock decides what is new.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from passagent.store.database import Store, now
from passagent.store.events import (
    KINDS,
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

log = logging.getLogger("passagent.search")

_ORDER = list(KINDS)


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
    """The rest of a SELECT: the fields of the events by their names, and the tables."""
    stages: tuple[tuple[type[Event], str], ...]
    """Event and the column with its time, null until it has happened."""


_SOURCES = {
    "sessions": _Source(
        "sessions.id",
        "left_at IS NULL",
        "owner, version, json(changes) AS changes, joined_at, left_at, left_because FROM sessions",
        ((Joined, "joined_at"), (Left, "left_at")),
    ),
    "episodes": _Source(
        "episodes.id",
        "episodes.state = 'running'",
        "episodes.number AS episode, "
        "episodes.island, episodes.model, episodes.parent_id AS parent, parents.as_score AS parent_as, "
        "parents.status AS parent_status, migration AS reason, parents.id AS node, "
        "parents.island AS from_island, episodes.island AS to_island, "
        "CASE WHEN migration IS NOT NULL THEN episodes.created_at END AS migrated_at, "
        "CASE WHEN episodes.model IS NOT NULL THEN episodes.created_at END AS begun_at, "
        "episodes.finished_at, end_reason, steps, best_node, best_as, gain FROM episodes "
        "LEFT JOIN nodes AS parents ON parents.id = episodes.parent_id",
        ((Migrated, "migrated_at"), (EpisodeBegun, "begun_at"), (EpisodeEnded, "finished_at")),
    ),
    "calls": _Source(
        "calls.id",
        "calls.state = 'started'",
        "number AS episode, calls.island, role, "
        "calls.model, attempt, latency_s, calls.input_tokens, calls.output_tokens, cost, error, calls.state, "
        "CASE WHEN calls.state = 'done' THEN calls.finished_at END AS replied_at, "
        "CASE WHEN calls.state != 'done' THEN calls.finished_at END AS failed_at "
        "FROM calls JOIN episodes ON episodes.id = episode_id",
        ((Replied, "replied_at"), (RequestFailed, "failed_at")),
    ),
    "nodes": _Source(
        "nodes.id",
        "nodes.state != 'done'",
        "nodes.id AS node, nodes.island, "
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
        ((Proposed, "created_at"), (Judged, "evaluated_at")),
    ),
    "confirmations": _Source(
        "confirmations.evaluation_id",
        "0",
        "node_id AS node, round, evaluations.status, evaluations.as_score, "
        "nodes.as_score AS first_as, evaluations.created_at AS measured_at "
        "FROM confirmations JOIN nodes ON nodes.id = node_id "
        "JOIN evaluations ON evaluations.id = confirmations.evaluation_id",
        ((MeasuredAgain, "measured_at"),),
    ),
    "distilled_hints": _Source(
        "distilled_hints.episode_id",
        "distilled_hints.state = 'wanted'",
        "number AS episode, island, hint_id AS hint, "
        "written_at FROM distilled_hints JOIN episodes ON episodes.id = episode_id",
        ((HintWritten, "written_at"),),
    ),
}


def _value(name: str, column: Any) -> Any:
    """The field of an event, of a column that SQLite returns as text or as a number."""
    if name in ("changes", "diagnosis"):
        return json.loads(column or "null")
    return bool(column) if name == "from_store" else column


def newest(store: Store, run_id: str, limit: int) -> tuple[list[Event], Seen]:
    """The last `limit` events in order, and from where to go on with `since`."""
    position = Seen()
    events = since(store, run_id, position)
    return events[max(0, len(events) - limit) :], position


def at_present(store: Store, run_id: str) -> Seen:
    """Return the position for which `since` has what happens from now on."""
    position = Seen()
    with store.reading():
        for table, source in _SOURCES.items():
            newest_row = store.row(
                f"SELECT max({source.key}) AS id FROM {table} WHERE run_id = :run", {"run": run_id}
            )
            position.last[table] = (newest_row["id"] if newest_row else None) or 0
            rows = _rows_of(store, run_id, table, source.is_open)
            position.open[table] = {row["id"]: len(_reached(source, row)) for row in rows}
    return position


def since(store: Store, run_id: str, position: Seen) -> list[Event]:
    """The events since `position` was brought up to date, in order; it is brought up to date."""
    events = list[Event]()
    with store.reading():
        for table, source in _SOURCES.items():
            returned, seen = position.open.setdefault(table, {}), position.last.get(table, 0)
            # SQLite scans the table for `key > :seen OR key IN (...)`, with what it is joined to
            newer = f"SELECT {source.key} FROM {table} WHERE {source.key} > :seen"
            still_open = f"SELECT value FROM json_each('{list(returned)}')"
            where = f"{source.key} IN ({newer} UNION ALL {still_open})" if seen else "1"
            for row in _rows_of(store, run_id, table, where, seen):
                reached = _reached(source, row)
                for kind, at in reached[returned.pop(row["id"], 0) :]:
                    columns = {item.name: _value(item.name, row[item.name]) for item in fields(kind)[1:]}
                    events.append(kind(at=row[at], **columns))
                if row["is_open"]:
                    returned[row["id"]] = len(reached)
                position.last[table] = max(seen, row["id"])
    return sorted(events, key=lambda event: (event.at, _ORDER.index(event.kind)))


def _rows_of(store: Store, run_id: str, table: str, where: str, after: int = 0) -> list[Any]:
    """The rows of a run for which a condition holds, by their keys."""
    source = _SOURCES[table]
    # the plus keeps SQLite from the index on run_id: the few new and open rows are found by their ids
    return store.rows(
        f"SELECT {source.key} AS id, {source.is_open} AS is_open, {source.query} "
        f"WHERE {'+' * bool(after)}{table}.run_id = :run AND {where} ORDER BY 1",
        {"run": run_id, "seen": after},
    )


def _reached(source: _Source, row: Any) -> list[tuple[type[Event], str]]:
    """The stages that have happened to a row."""
    return [stage for stage in source.stages if row[stage[1]] is not None]


class Follower:
    """Passes on what happens in a run from now on, each time that it is asked to look."""

    def __init__(self, store: Store, run_id: str, on_event: OnEvent | None) -> None:
        self._store, self._run_id = store, run_id
        self.follow(on_event)

    def follow(self, on_event: OnEvent | None) -> None:
        """Pass on to `on_event` what happens from now on; None: to nobody, and nothing is looked up."""
        self._on_event = on_event
        self._seen = None if on_event is None else at_present(self._store, self._run_id)

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
        """Log something for a person to know, and pass it on after what is new."""
        log.info(message)
        self.tell(Noted, message=message)
