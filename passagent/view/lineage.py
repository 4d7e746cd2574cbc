"""How a node came to be: its ancestors up to the task, and why each episode began where it did."""

from __future__ import annotations

from typing import NamedTuple

from passagent.store.database import Store
from passagent.store.episodes import Episode
from passagent.store.nodes import Node, ancestors
from passagent.store.runs import SEEDS

_LONGEST = 100_000


class Rank(NamedTuple):
    """Where a node stood among the correct candidates that could be chosen when an episode began."""

    better: int
    """With a higher AS."""
    correct: int


def lineage(store: Store, node: Node) -> list[Node]:
    """The node and all its ancestors, the eldest first."""
    return [*reversed(ancestors(store, node.id, _LONGEST)), node]


def migration_reason(store: Store, episode_id: int) -> str | None:
    """Why the episode's parent came from another island; None if it did not."""
    row = store.row("SELECT reason FROM elite_migrations WHERE episode_id = :id", {"id": episode_id})
    return str(row["reason"]) if row else None


def rank_then(store: Store, episode: Episode, parent: Node) -> Rank:
    """Where `parent` stood among what the island's episodes before this one had made, and the seeds."""
    row = store.row(
        "SELECT count(*) AS correct, coalesce(sum(as_score > :score), 0) AS better FROM nodes "
        "WHERE run_id = :run AND island IN (:island, :seeds, :origin) AND status = 'ok' "
        "AND repeat_of IS NULL AND number < :number "
        "AND (island != :origin OR :origin IN (:island, :seeds) OR id = :parent)",
        {
            "run": episode.run_id,
            "island": episode.island,
            "seeds": SEEDS,
            "origin": parent.island,
            "parent": parent.id,
            "number": episode.number,
            "score": -1.0 if parent.as_score is None else parent.as_score,
        },
    )
    assert row is not None
    return Rank(row["better"], row["correct"])


class Conditions(NamedTuple):
    """What a score depends on beside the candidate."""

    evaluator_version: str
    environment: str
    """Machine, device, versions and protocol."""


def conditions(store: Store, node: Node) -> Conditions | None:
    """Under which the node's newest evaluation was made; None before the first."""
    row = store.row(
        "SELECT evaluator_version, environment FROM nodes JOIN evaluations ON evaluations.id = coalesce("
        "(SELECT max(evaluation_id) FROM confirmations WHERE confirmations.run_id = nodes.run_id "
        "AND node_id = nodes.id), nodes.evaluation_id) JOIN conditions ON conditions.id = conditions_id "
        "WHERE nodes.id = :id",
        {"id": node.id},
    )
    return Conditions(**row) if row else None
