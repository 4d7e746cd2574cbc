"""Figures of a run that say whether the search's mechanisms did what they are for (`passagent doctor`)."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any, NamedTuple

from passagent.store import confirmations, evaluations, nodes
from passagent.store.database import Store
from passagent.store.runs import Run


class HintFigures(NamedTuple):
    """How many hints were shown."""

    episodes: int
    """Begun."""
    with_hints: int
    """Of these, whose prompt showed some."""
    hints: int
    """Different ones."""


class Duplicates(NamedTuple):
    """Candidates that were made more than once."""

    nodes: int
    equal: int
    """Nodes whose source an earlier one of the run has."""
    rewritten: int
    """Of these, with other comments, formatting or names of files."""
    evaluated_again: int
    """Distinct programs with more than one evaluation under the same conditions: should be none."""


class Device(NamedTuple):
    """How busy the devices were."""

    devices: list[str]
    evaluations: int
    busy_s: float
    """With an evaluation under way; of several devices together."""
    mean_s: float
    """Of an evaluation."""


class Requests(NamedTuple):
    """What became of the requests to models."""

    requests: int
    replies: int
    broken: int
    failed: int
    lost: int
    again: int
    """Second and later attempts of a message."""
    worst_error: str | None
    """The most frequent one."""
    worst_count: int


class Finalist(NamedTuple):
    """A node that was measured again."""

    node: int
    first_as: float | None
    second_as: float | None
    status: str


def hint_figures(store: Store, run_id: str) -> HintFigures:
    """Count the hints shown in the run."""
    [row] = store.rows(
        "SELECT (SELECT count(*) FROM episodes WHERE run_id = :run AND model IS NOT NULL) AS episodes, "
        "count(DISTINCT episode_id) AS with_hints, count(DISTINCT hint_id) AS hints "
        "FROM hint_uses WHERE run_id = :run AND is_shown",
        {"run": run_id},
    )
    return HintFigures(**row)


def duplicates(store: Store, run_id: str) -> Duplicates:
    """Equal candidates of the run."""
    [row] = store.rows(
        "SELECT count(*) AS nodes, count(*) - count(DISTINCT canonical_key) AS equal, "
        "count(DISTINCT candidate_key) - count(DISTINCT canonical_key) AS rewritten FROM nodes "
        "WHERE run_id = :run",
        {"run": run_id},
    )
    made = store.rows(
        "WITH twice AS (SELECT canonical_key FROM nodes WHERE run_id = :run AND evaluation_id IS NOT NULL "
        "  GROUP BY canonical_key HAVING count(DISTINCT evaluation_id) > 1) "
        "SELECT DISTINCT evaluations.id, nodes.canonical_key, evaluator_version || environment AS conditions "
        "FROM nodes JOIN twice ON twice.canonical_key = nodes.canonical_key "
        "AND substr(nodes.canonical_key, 1, 16) = substr(twice.canonical_key, 1, 16) "
        "JOIN evaluations ON evaluations.id = nodes.evaluation_id "
        "JOIN conditions ON conditions.id = conditions_id "
        "WHERE nodes.run_id = :run AND evaluations.status != 'infrastructure'",
        {"run": run_id},
    )
    times = Counter(
        (one["canonical_key"], one["conditions"])
        for one in made
        if evaluations.get_evaluation(store, one["id"], samples=False).get("validator")
        is None  # its opinion is another one
    )
    return Duplicates(**row, evaluated_again=sum(count > 1 for count in times.values()))


def device(store: Store, run: Run) -> Device:
    """From the run's evaluations: each was under way for its `seconds` before it was stored."""
    names = store.rows(
        "SELECT DISTINCT coalesce(json_extract(sessions.config, '$.evaluator.device'), device) AS name "
        "FROM runs LEFT JOIN sessions ON run_id = runs.id WHERE runs.id = :run",
        {"run": run.id},
    )
    devices = {device for row in names for device in row["name"].split(",")}
    rows = store.rows(
        "SELECT created_at, seconds FROM evaluations WHERE created_at >= :begun AND id IN ("
        "  SELECT evaluation_id FROM nodes WHERE run_id = :run "
        "  UNION SELECT evaluation_id FROM confirmations WHERE run_id = :run)",
        {"run": run.id, "begun": run.created_at},
    )
    total = sum(row["seconds"] for row in rows)
    busy = _covered_s(rows) if len(devices) == 1 else total
    return Device(sorted(devices), len(rows), busy, total / max(1, len(rows)))


def _covered_s(rows: list[dict[str, Any]]) -> float:
    """Time in which at least one of the evaluations was under way, s."""
    ends = [datetime.fromisoformat(row["created_at"]).timestamp() for row in rows]
    covered, until = 0.0, float("-inf")
    for begin, end in sorted((end - row["seconds"], end) for end, row in zip(ends, rows, strict=True)):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def requests(store: Store, run_id: str) -> Requests:
    """Of all models."""
    names = {"done": "replies", "broken": "broken", "failed": "failed", "lost": "lost"}
    sums = ", ".join(f"coalesce(sum(state = '{state}'), 0) AS {name}" for state, name in names.items())
    [row] = store.rows(
        f"SELECT count(*) AS requests, {sums}, coalesce(sum(attempt > 1), 0) AS again FROM calls "
        "WHERE run_id = :run",
        {"run": run_id},
    )
    worst = store.rows(
        "SELECT error AS worst_error, count(*) AS worst_count FROM calls WHERE run_id = :run "
        "AND state IN ('broken', 'failed') GROUP BY error ORDER BY worst_count DESC, error LIMIT 1",
        {"run": run_id},
    )
    none = {"worst_error": None, "worst_count": 0}
    return Requests(**row, **(worst[0] if worst else none))


def finalists(store: Store, run_id: str) -> list[Finalist]:
    """The nodes that were measured again, in the newest series, the best first measurement first."""
    rows = confirmations.last_series(store, run_id)
    again = confirmations.scores(rows)
    worst = {row.node_id: row.status or "" for row in sorted(rows, key=lambda row: row.status != "ok")}
    found = [(nodes.get_node(store, node_id), status) for node_id, status in worst.items()]
    return sorted(
        (Finalist(node.id, node.as_score, again.get(node.id), status) for node, status in found),
        key=lambda one: -(one.first_as or 0.0),
    )


def migrant_gains(store: Store, run_id: str) -> list[float | None]:
    """What the finished episodes that began from a migrant gained over it."""
    rows = store.rows(
        "SELECT gain FROM episodes WHERE run_id = :run AND migrated AND state = 'done' ORDER BY number",
        {"run": run_id},
    )
    return [row["gain"] for row in rows]


def unfinished(store: Store, run_id: str) -> dict[str, Any]:
    """Episodes and nodes that are not done."""
    [row] = store.rows(
        "SELECT (SELECT count(*) FROM episodes WHERE run_id = :run AND state = 'running') AS episodes, "
        "(SELECT count(*) FROM nodes WHERE run_id = :run AND state != 'done') AS nodes",
        {"run": run_id},
    )
    return row


def missing_files(store: Store, run_id: str) -> list[str]:
    """Keys of the run's candidates whose files are gone from the database."""
    rows = store.rows(
        "SELECT DISTINCT candidate_key FROM nodes WHERE run_id = :run "
        "AND NOT EXISTS (SELECT 1 FROM files WHERE key = candidate_key)",
        {"run": run_id},
    )
    return [row["candidate_key"] for row in rows]
