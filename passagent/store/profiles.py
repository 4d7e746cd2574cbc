"""Profiles that were made of a run's nodes: what limits each, as it was told."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.database import Store, now
from passagent.store.nodes import Node


@dataclass(frozen=True)
class StoredProfile:
    """A row of `profiles`."""

    node_id: int
    run_id: str
    deep: int
    """1: with hardware counters."""
    text: str
    """As `passagent profile` prints it."""
    record: str
    """JSON: a profile_record.Profile, and its evidence."""
    created_at: str


def keep_profile(store: Store, run_id: str, candidate_key: str, deep: bool, text: str, record: str) -> None:
    """Keep a profile of the run's newest node with these files; it stands in for an earlier one."""
    store.execute(
        "INSERT OR REPLACE INTO profiles SELECT max(id), run_id, :deep, :text, :record, :at FROM nodes "
        "WHERE run_id = :run AND candidate_key = :key AND state = 'done' GROUP BY run_id",
        {"run": run_id, "key": candidate_key, "deep": int(deep), "text": text, "record": record, "at": now()},
    )


def profiles_of(store: Store, node: Node) -> list[StoredProfile]:
    """The profiles of a node, and of its run's others of the same files; the newest first."""
    return store.all(
        StoredProfile,
        "SELECT profiles.* FROM profiles JOIN nodes ON nodes.id = profiles.node_id "
        "WHERE profiles.run_id = :run AND nodes.candidate_key = :key ORDER BY profiles.created_at DESC",
        {"run": node.run_id, "key": node.candidate_key},
    )
