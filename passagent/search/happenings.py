"""What happened in a run, in order, from the rows themselves.

Rows are followed by their ids, which SQLite's one writer hands out in the order of the commits, and those
that are still open are looked at again: no clock decides what is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from passagent.store.database import Store


class Happening(NamedTuple):
    """Something that happened."""

    at: str
    """ISO 8601, UTC."""
    kind: str
    """One of _KINDS."""
    about: dict[str, Any]


_KINDS = (
    "joined",
    "migration",
    "episode_begun",
    "reply",
    "request_failed",
    "proposed",
    "judged",
    "episode_ended",
    "measured_again",
    "hint_written",
    "left",
)
"""In the order of what happens in the same millisecond."""


@dataclass
class Seen:
    """How far a run was followed."""

    last: dict[str, int] = field(default_factory=dict)
    """Of each table: the newest row that was looked at."""
    open: dict[str, dict[int, int]] = field(default_factory=dict)
    """Of each table: the rows that more will happen to, with how much of it was told."""


class _Source(NamedTuple):
    """A table whose rows tell what happens."""

    key: str
    """What new rows have more of."""
    is_open: str
    """Whether more will happen to a row."""
    query: str
    """Of what the stages tell."""
    stages: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Kind, the column with its time (null until it has happened), and the columns that tell of it."""


_EPISODE = ("episode", "island", "model")
_NODE = ("node", "island", "episode")
_CALL = ("episode", "island", "role", "model", "attempt", "latency_s")
_SOURCES = {
    "sessions": _Source(
        "sessions.id",
        "left_at IS NULL",
        "SELECT owner, version, json(changes) AS changes, joined_at, left_at, left_because FROM sessions",
        (
            ("joined", "joined_at", ("owner", "version", "changes")),
            ("left", "left_at", ("owner", "left_because")),
        ),
    ),
    "episodes": _Source(
        "episodes.id",
        "episodes.state = 'running'",
        "SELECT episodes.number AS episode, "
        "episodes.island, episodes.model, episodes.parent_id AS parent, parents.as_score AS parent_as, "
        "parents.status AS parent_status, "
        "CASE WHEN episodes.model IS NOT NULL THEN coalesce((SELECT strftime('%Y-%m-%dT%H:%M:%fZ', "
        "at_ms / 1000.0, 'unixepoch') FROM steps WHERE episode_id = episodes.id AND seq = 1), "
        "episodes.created_at) END AS begun_at, "
        "episodes.finished_at, end_reason, steps, best_node, best_as, gain FROM episodes "
        "LEFT JOIN nodes AS parents ON parents.id = episodes.parent_id",
        (
            ("episode_begun", "begun_at", (*_EPISODE, "parent", "parent_as")),
            (
                "episode_ended",
                "finished_at",
                (*_EPISODE, "parent", "parent_status", "end_reason", "steps", "best_node", "best_as", "gain"),
            ),
        ),
    ),
    "elite_migrations": _Source(
        "elite_migrations.id",
        "0",
        "SELECT node_id AS node, from_island, to_island, reason, "
        "elite_migrations.created_at FROM elite_migrations",
        (("migration", "created_at", ("node", "from_island", "to_island", "reason")),),
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
            ("reply", "replied_at", (*_CALL, "input_tokens", "output_tokens", "cost")),
            ("request_failed", "failed_at", (*_CALL, "state", "error")),
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
            ("proposed", "created_at", (*_NODE, "parent", "note", "repeat_of")),
            (
                "judged",
                "evaluated_at",
                (
                    *(*_NODE, "status", "as_score", "from_store", "note", "diagnosis"),
                    *("parent", "parent_as", "parent_status"),
                ),
            ),
        ),
    ),
    "confirmations": _Source(
        "confirmations.evaluation_id",
        "0",
        "SELECT node_id AS node, round, confirmations.status, confirmations.as_score, "
        "nodes.as_score AS first_as, measured_at FROM confirmations JOIN nodes ON nodes.id = node_id",
        (("measured_again", "measured_at", ("node", "round", "status", "as_score", "first_as")),),
    ),
    "distilled_hints": _Source(
        "distilled_hints.episode_id",
        "distilled_hints.state = 'wanted'",
        "SELECT number AS episode, island, hint_id AS hint, "
        "written_at FROM distilled_hints JOIN episodes ON episodes.id = episode_id",
        (("hint_written", "written_at", ("episode", "island", "hint")),),
    ),
}

_LAST = "SELECT " + ", ".join(
    f"(SELECT coalesce(max({source.key}), 0) FROM {table}) AS {table}" for table, source in _SOURCES.items()
)


def newest(store: Store, run_id: str, limit: int) -> tuple[list[Happening], Seen]:
    """The last `limit` things that happened, in order, and from where to go on with `since`."""
    found, seen = [], Seen(_last(store))
    for table, source in _SOURCES.items():
        some = f"SELECT {source.key} FROM {table} WHERE run_id = :run ORDER BY 1 DESC LIMIT :limit"
        where = (
            f"{table}.run_id = :run AND {source.key} <= :last "
            f"AND ({source.key} IN ({some}) OR {source.is_open})"
        )
        bounds = {"run": run_id, "limit": limit, "last": seen.last[table]}
        found += _take(seen, table, source, _rows(store, source, where, bounds))
    return _in_order(found)[max(0, len(found) - limit) :], seen


def since(store: Store, run_id: str, seen: Seen) -> list[Happening]:
    """What happened since `seen` was brought up to date, in order; it is brought up to date."""
    found, last = [], _last(store)
    for table, source in _SOURCES.items():
        rows = []
        if seen.open[table]:
            keys = ", ".join(map(str, seen.open[table]))
            rows = _rows(store, source, f"{source.key} IN ({keys})", {})
        if last[table] > seen.last[table]:
            # the plus keeps SQLite from the index on run_id: the few new rows are found by their ids
            where = f"+{table}.run_id = :run AND {source.key} > :seen AND {source.key} <= :last"
            bounds = {"run": run_id, "seen": seen.last[table], "last": last[table]}
            rows += _rows(store, source, where, bounds)
        found += _take(seen, table, source, rows)
    seen.last = last
    return _in_order(found)


def _in_order(found: list[Happening]) -> list[Happening]:
    return sorted(found, key=lambda one: (one.at, _KINDS.index(one.kind)))


def _last(store: Store) -> dict[str, int]:
    """Of each table: the key of its newest row, 0 where it has none."""
    row = store.row(_LAST)
    assert row is not None
    return row


def _rows(store: Store, source: _Source, where: str, bounds: dict[str, Any]) -> list[dict[str, Any]]:
    columns = f"SELECT {source.key} AS id, {source.is_open} AS is_open, "
    return store.rows(f"{source.query.replace('SELECT ', columns, 1)} WHERE {where} ORDER BY 1", bounds)


def _take(seen: Seen, table: str, source: _Source, rows: list[dict[str, Any]]) -> list[Happening]:
    """What the rows tell that was not told yet; `seen` takes them in."""
    found, told = [], seen.open.setdefault(table, {})
    for row in rows:
        reached = [stage for stage in source.stages if row[stage[1]] is not None]
        for kind, at, columns in reached[told.pop(row["id"], 0) :]:
            found.append(Happening(row[at], kind, {column: row[column] for column in columns}))
        if row["is_open"]:
            told[row["id"]] = len(reached)
    return found
