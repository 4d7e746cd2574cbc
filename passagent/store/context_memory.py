"""The pages that summarise what an island has tried, and which are still to be written."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.redaction import redact
from passagent.store.database import Store, now
from passagent.store.episodes import Episode


@dataclass(frozen=True)
class Page:
    """A page of an island's context memory."""

    island: int
    episode: int
    """Number of the episode after which it was written."""
    page: str
    written_at: str


def want(store: Store, episode: Episode) -> None:
    """A page is to be written after the finished episode: to be called in the transaction that ends it."""
    store.execute(
        "INSERT OR IGNORE INTO context_memory (episode_id, run_id, island, state, created_at) "
        "VALUES (:episode, :run, :island, 'wanted', :at)",
        {"episode": episode.id, "run": episode.run_id, "island": episode.island, "at": now()},
    )


def wanted(store: Store, run_id: str, island: int) -> list[int]:
    """Ids of the island's episodes after which a page is still to be written, in order."""
    rows = store.rows(
        "SELECT episode_id FROM context_memory WHERE run_id = :run AND island = :island "
        "AND state = 'wanted' ORDER BY episode_id",
        {"run": run_id, "island": island},
    )
    return [row["episode_id"] for row in rows]


def settle(store: Store, episode: Episode, page: str) -> None:
    """A reply has arrived, with a page or (empty) none: for the transaction that ends its call."""
    text = redact(page)
    store.execute(
        "UPDATE context_memory SET state = :state, page = :page, written_at = :at "
        "WHERE episode_id = :episode",
        {
            "state": "written" if text else "none",
            "page": text or None,
            "at": now(),
            "episode": episode.id,
        },
    )


def pages(store: Store, run_id: str) -> list[Page]:
    """All pages of a run, in the order of their episodes."""
    return store.all(
        Page,
        "SELECT context_memory.island, number AS episode, page, written_at FROM context_memory "
        "JOIN episodes ON episodes.id = episode_id WHERE context_memory.run_id = :run "
        "AND context_memory.state = 'written' ORDER BY number",
        {"run": run_id},
    )


def page_before(store: Store, episode: Episode) -> str:
    """The newest page of the episode's island from before it; empty if there is none."""
    row = store.row(
        "SELECT page FROM context_memory JOIN episodes ON episodes.id = episode_id "
        "WHERE context_memory.run_id = :run AND context_memory.island = :island "
        "AND context_memory.state = 'written' AND number < :number ORDER BY number DESC LIMIT 1",
        {"run": episode.run_id, "island": episode.island, "number": episode.number},
    )
    return str(row["page"]) if row else ""
