"""Which hints were shown, and what gain followed: so that good hints rise and the others sink.

And the hints that were distilled from what earlier episodes gained.
"""

from __future__ import annotations

import json
from typing import Any

from passagent.redaction import redacted
from passagent.store.database import Store, now
from passagent.store.episodes import Episode


def record_uses(store: Store, episode: Episode, hint_ids: list[str]) -> None:
    """The episode's prompt shows these hints; a repeated call changes nothing."""
    if not hint_ids:
        return
    names = {"run": episode.run_id, "episode": episode.id, "at": now(), "ids": json.dumps(hint_ids)}
    with store.transaction():
        shown = store.execute(
            "INSERT OR IGNORE INTO hints_shown (episode_id, run_id, hints) VALUES (:episode, :run, :ids)",
            names,
        )
        if shown.rowcount:
            store.execute(
                "INSERT INTO hints (id, uses, last_used_at) SELECT value, 1, :at FROM json_each(:ids) "
                "WHERE true ON CONFLICT (id) DO UPDATE SET uses = uses + 1, "
                "last_used_at = excluded.last_used_at",
                names,
            )


def credit(store: Store, episode: Episode, gain: float) -> None:
    """The log gain in AS that followed the episode's hints (0: none); each use is credited once."""
    with store.transaction():
        names = {"gain": gain, "episode": episode.id}
        store.execute(
            "UPDATE hints SET credited = credited + 1, helped = helped + (:gain > 0), "
            "total_gain = total_gain + :gain WHERE id IN "
            "(SELECT hint_id FROM hint_uses WHERE episode_id = :episode AND gain IS NULL)",
            names,
        )
        store.execute(
            "UPDATE hints_shown SET gain = :gain WHERE episode_id = :episode AND gain IS NULL", names
        )


def mean_gains(store: Store) -> dict[str, tuple[int, float]]:
    """Of every hint that was ever shown how often it was credited, and the mean log gain that followed."""
    return {
        row["id"]: (row["credited"], row["mean"])
        for row in store.rows("SELECT id, credited, total_gain / max(credited, 1) AS mean FROM hints")
    }


def want_distilled(store: Store, episode: Episode) -> None:
    """The finished episode is to be asked about: to be called in the transaction that ends it."""
    store.execute(
        "INSERT OR IGNORE INTO distilled_hints (episode_id, run_id, state, gain, created_at) "
        "VALUES (:episode, :run, 'wanted', :gain, :at)",
        {"episode": episode.id, "run": episode.run_id, "gain": episode.gain, "at": now()},
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
    store: Store, episode: Episode, hint: dict[str, Any] | None, author: str, lesson: dict[str, Any] | None
) -> None:
    """A reply about the episode has arrived, with a hint (as plain data, kept without secrets) or none.

    `lesson`: all that the reply of `author` holds, with votes on other hints.

    To be called in the transaction that ends its call: the episode is not asked about again.
    """
    store.execute(
        "UPDATE distilled_hints SET state = :state, hint_id = :hint_id, hint = :hint, author = :author, "
        "lesson = :lesson, written_at = :at WHERE episode_id = :episode",
        {
            "state": "written" if hint else "none",
            "hint_id": hint["id"] if hint else None,
            "hint": json.dumps(redacted(hint)) if hint else None,
            "author": author,
            "lesson": json.dumps(redacted(lesson)) if lesson else None,
            "at": now() if hint else None,
            "episode": episode.id,
        },
    )


def lessons(store: Store, run_id: str) -> list[tuple[int, str, str]]:
    """Of the run's episodes that taught something: id, who was asked, and the lesson as JSON."""
    sql = (
        "SELECT episode_id, author, lesson FROM distilled_hints "
        "WHERE run_id = :run AND lesson IS NOT NULL ORDER BY episode_id"
    )
    return [(row["episode_id"], row["author"], row["lesson"]) for row in store.rows(sql, {"run": run_id})]


def distilled(store: Store) -> list[str]:
    """The hints that were distilled in any run, as JSON, the oldest first."""
    rows = store.rows("SELECT hint FROM distilled_hints WHERE state = 'written' ORDER BY episode_id")
    return [row["hint"] for row in rows]
