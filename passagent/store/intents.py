"""What episodes meant to do: intents, apart from code (K-Search), and what came of each."""

from __future__ import annotations

from dataclasses import dataclass

from passagent.store.database import Store, now
from passagent.store.episodes import Episode
from passagent.store.nodes import Node

RECENT = 200
"""Intents of an island that are looked through for untried ones."""


@dataclass(frozen=True)
class Intent:
    """A row of `intents`, with what was measured of it."""

    id: int
    island: int
    episode: int
    """Its number in the run."""
    what: str
    why: str
    expected: int
    """Gain in AS, percent."""
    taken_from: int | None
    """The earlier intent that it takes up."""
    taken_by: int | None
    nodes: int
    """Candidates that were evaluated under it."""
    best_as: float | None
    """Of those that are correct."""
    start_as: float | None
    """Of what the first of them was made from; None: of nothing correct."""

    @property
    def measured(self) -> float | None:
        """Gain in AS, percent, over where it started (eager, if that was wrong); None: nothing correct."""
        return None if self.best_as is None else 100 * (self.best_as / (self.start_as or 1.0) - 1)

    @property
    def is_untried(self) -> bool:
        """Nothing was evaluated under it, and no later one takes it up."""
        return not self.nodes and self.taken_by is None


_QUERY = """
SELECT intents.id, intents.island, episodes.number AS episode, what, why, expected, taken_from,
    (SELECT min(later.id) FROM intents AS later WHERE later.taken_from = intents.id) AS taken_by,
    count(nodes.id) AS nodes, max(CASE nodes.status WHEN 'ok' THEN nodes.as_score END) AS best_as,
    (SELECT CASE parents.status WHEN 'ok' THEN parents.as_score END FROM intents_tried AS first
        JOIN nodes AS made ON made.id = first.node_id
        LEFT JOIN nodes AS parents ON parents.id = made.parent_id
        WHERE first.intent_id = intents.id ORDER BY made.id LIMIT 1) AS start_as
FROM intents JOIN episodes ON episodes.id = intents.episode_id
    LEFT JOIN intents_tried ON intents_tried.intent_id = intents.id
    LEFT JOIN nodes ON nodes.id = intents_tried.node_id
WHERE intents.run_id = :run {and_where} GROUP BY intents.id ORDER BY {order}
"""


def add(
    store: Store, episode: Episode, call_id: str, what: str, why: str, expected: int, taken_from: int | None
) -> int:
    """A new intent; its id."""
    row = store.row(
        "INSERT INTO intents (run_id, island, episode_id, call_id, what, why, expected, taken_from, "
        "created_at) VALUES (:run, :island, :episode, :call, :what, :why, :expected, :from, :at) "
        "RETURNING id",
        {
            "run": episode.run_id,
            "island": episode.island,
            "episode": episode.id,
            "call": call_id,
            "what": what,
            "why": why,
            "expected": expected,
            "from": taken_from,
            "at": now(),
        },
    )
    assert row is not None
    return int(row["id"])


def of_episode(store: Store, episode_id: int) -> dict[str, int]:
    """Call id to intent."""
    rows = store.rows("SELECT call_id, id FROM intents WHERE episode_id = :episode", {"episode": episode_id})
    return {row["call_id"]: row["id"] for row in rows}


def tried(store: Store, node: Node) -> None:
    """The node counts for the last intent of its episode, if there is one."""
    store.execute(
        "INSERT OR IGNORE INTO intents_tried (node_id, run_id, intent_id) "
        "SELECT :node, run_id, id FROM intents WHERE episode_id = :episode ORDER BY id DESC LIMIT 1",
        {"node": node.id, "episode": node.episode_id},
    )


def of_run(store: Store, run_id: str) -> list[Intent]:
    """All, in the order in which they were written."""
    query = _QUERY.format(and_where="", order="intents.id")
    return store.all(Intent, query, {"run": run_id})


def untried(store: Store, run_id: str, island: int) -> list[Intent]:
    """Of an island's last RECENT those that nobody has tried, the most promising first."""
    query = _QUERY.format(
        and_where="AND intents.id IN (SELECT id FROM intents AS recent WHERE recent.run_id = :run "
        "AND recent.island = :island ORDER BY recent.id DESC LIMIT :recent) "
        "AND NOT EXISTS (SELECT 1 FROM intents_tried AS any_one "
        "WHERE any_one.intent_id = intents.id) AND NOT EXISTS (SELECT 1 FROM intents AS later "
        "WHERE later.taken_from = intents.id)",
        order="expected DESC, intents.id DESC",
    )
    return store.all(Intent, query, {"run": run_id, "island": island, "recent": RECENT})


def of_nodes(store: Store, run_id: str) -> dict[int, int]:
    """Node to intent."""
    rows = store.rows("SELECT node_id, intent_id FROM intents_tried WHERE run_id = :run", {"run": run_id})
    return {row["node_id"]: row["intent_id"] for row in rows}
