"""The hints that episodes were shown, and the hints that were distilled from episodes."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from passagent.store.database import Store, now
from passagent.store.episodes import Episode
from passagent.store.redaction import redacted


class LearnedRow(NamedTuple):
    """A distilled hint and where it comes from."""

    hint: str
    """JSON."""
    run_id: str
    node_id: int | None
    """The best candidate of the episode that it was distilled from."""
    author: str
    """The model that wrote it."""


class Outcome(NamedTuple):
    """An ended episode for which a learned hint was chosen."""

    episode_id: int
    hint_id: str
    is_shown: bool
    """False: the episode was held out."""
    gain: float
    """Log gain in AS over where the episode started; 0 without a correct candidate."""


def times_shown(store: Store) -> dict[str, int]:
    """How many episodes of all runs were shown each hint, by its id."""
    rows = store.rows("SELECT hint_id, count(*) AS uses FROM hint_uses WHERE is_shown GROUP BY hint_id")
    return {row["hint_id"]: row["uses"] for row in rows}


def want_distilled(store: Store, episode: Episode) -> None:
    """Mark an episode as one to ask about; to be called in the transaction that ends it."""
    store.execute(
        "INSERT OR IGNORE INTO distilled_hints (episode_id, run_id, state) VALUES (:episode, :run, 'wanted')",
        {"episode": episode.id, "run": episode.run_id},
    )


def undistilled(store: Store, run_id: str, island: int) -> list[int]:
    """Ids of the island's episodes that are still to be asked about, in order."""
    rows = store.rows(
        "SELECT episode_id FROM distilled_hints JOIN episodes ON episodes.id = episode_id "
        "WHERE distilled_hints.run_id = :run AND distilled_hints.state = 'wanted' AND island = :island "
        "ORDER BY episode_id",
        {"run": run_id, "island": island},
    )
    return [row["episode_id"] for row in rows]


def settle_distilled(
    store: Store,
    episode_id: int,
    hint: dict[str, Any] | None,
    node_id: int,
    author: str,
    task_hashes: Collection[str],
) -> None:
    """Store a reply about an episode: its hint (plain data, kept without secrets), or that it has none.

    `task_hashes`: all that the task is known by, for `experience.exclude`. To be called in the transaction
    that ends the reply's call, so that the episode is not asked about again.
    """
    reply: dict[str, Any] = {"state": "none"}
    if hint:
        text = json.dumps(redacted(hint))
        reply = {"state": "written", "hint_id": hint["id"], "hint": text, "written_at": now()}
    origin = {"node_id": node_id, "author": author, "task_hashes": json.dumps(sorted(task_hashes))}
    store.update("distilled_hints", episode_id, **reply, **origin)


def learned(store: Store, without: Collection[str] = ()) -> list[LearnedRow]:
    """The hints distilled in all runs, the oldest first, but for those of tasks with one of these hashes."""
    return store.all(
        LearnedRow,
        "SELECT hint, run_id, node_id, author FROM distilled_hints WHERE state = 'written' "
        "AND NOT EXISTS (SELECT 1 FROM json_each(task_hashes) AS own "
        "WHERE own.value IN (SELECT value FROM json_each(:without))) ORDER BY episode_id",
        {"without": json.dumps(sorted(without))},
    )


def outcomes(store: Store) -> list[Outcome]:
    """The ended episodes for which learned hints were chosen, one row for each hint, in order."""
    return store.all(
        Outcome,
        "SELECT uses.episode_id, uses.hint_id, is_shown, coalesce(gain, 0.0) AS gain FROM hint_uses AS uses "
        "JOIN distilled_hints USING (hint_id) JOIN episodes ON episodes.id = uses.episode_id "
        "WHERE episodes.state = 'done' ORDER BY uses.episode_id, uses.hint_id",
    )
