"""Scores of another environment: which nodes are to be measured again, and how the others' are forgotten."""

from __future__ import annotations

from passagent.store import nodes, runs
from passagent.store.database import Store
from passagent.store.nodes import Node

_ELSEWHERE = (
    "(SELECT evaluations.id FROM evaluations JOIN conditions ON conditions.id = conditions_id "
    "WHERE evaluator_version || '; ' || environment != :environment)"
)


def to_measure(store: Store, run_id: str, elites: int, environment: str) -> list[Node]:
    """The islands' elites, and the correct nodes that the episodes under way start from or made.

    Only those whose score is not of `environment`, in the order of their making.
    """
    found = [
        node
        for island in [runs.SEEDS, *(island.island for island in runs.islands(store, run_id))]
        for node in nodes.best_of_island(store, run_id, island, elites)
    ]
    rows = store.rows(
        "SELECT nodes.* FROM nodes JOIN episodes ON nodes.id = episodes.parent_id "
        "OR nodes.episode_id = episodes.id "
        "WHERE episodes.run_id = :run AND episodes.state = 'running' AND nodes.status = 'ok'",
        {"run": run_id},
    )
    chosen = {node.id: node for node in [*found, *(Node(**row) for row in rows)]}
    elsewhere = store.rows(
        f"SELECT id FROM nodes WHERE run_id = :run AND status = 'ok' AND evaluation_id IN {_ELSEWHERE}",
        {"run": run_id, "environment": environment},
    )
    return [chosen[row["id"]] for row in elsewhere if row["id"] in chosen]


def forget_scores(store: Store, run_id: str, environment: str) -> None:
    """Correct nodes of another environment have no score any more; their evaluations stay what they are.

    To be called in the transaction that gives some of them new ones. Second measurements and what was built
    on the scores are forgotten, too.
    """
    names = {"run": run_id, "environment": environment}
    store.execute(
        "UPDATE nodes SET as_score = NULL WHERE run_id = :run AND status = 'ok' "
        f"AND evaluation_id IN {_ELSEWHERE}",
        names,
    )
    for table in ("confirmations", "archive", "tree"):  # what is left of them is built again as it is needed
        store.execute(f"DELETE FROM {table} WHERE run_id = :run", {"run": run_id})
    store.execute(
        "UPDATE islands SET (best_node, best_as) = (SELECT id, as_score FROM nodes WHERE run_id = :run "
        "AND nodes.island = islands.island AND status = 'ok' AND repeat_of IS NULL "
        "ORDER BY as_score DESC, id LIMIT 1) WHERE run_id = :run",
        {"run": run_id},
    )
