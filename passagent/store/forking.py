"""Forks: a run whose seed is a copy of another run's node. Of that run nothing is needed any more."""

from __future__ import annotations

from dataclasses import replace

from passagent.store import archive, episodes, nodes
from passagent.store.database import Store, now
from passagent.store.episodes import episode_seed, get_episode
from passagent.store.nodes import Marks, Node
from passagent.store.runs import SEEDS, Run

CALL = "fork"
"""Stands for the tool call that proposed a seed."""


def plant(
    store: Store,
    run: Run,
    origin: Node,
    evaluation_id: int,
    status: str,
    as_score: float | None,
    diagnosis: str,
) -> Node:
    """Make a copy of `origin` the seed of the new `run`, with its evaluation under the run's conditions.

    It is a node of episode 0, on the island of the seeds, which all islands see.
    """
    with store.transaction():
        names = {"run": run.id, "seeds": SEEDS, "from": origin.run_id, "node": origin.id}
        store.execute(
            "UPDATE runs SET forked_run = :from, forked_node = :node WHERE id = :run",
            {"run": run.id, "from": origin.run_id, "node": origin.id},
        )
        store.execute("INSERT INTO islands (run_id, island, role) VALUES (:run, :seeds, 'seed')", names)
        cursor = store.execute(
            "INSERT INTO episodes (run_id, number, island, seed, state, model, created_at) "
            "VALUES (:run, 0, :seeds, :seed, 'running', :model, :at)",
            names
            | {
                "seed": episode_seed(run.seed, 0),
                "model": get_episode(store, origin.episode_id).model,
                "at": now(),
            },
        )
        assert cursor.lastrowid is not None
        episode = get_episode(store, cursor.lastrowid)
        node = nodes.propose(
            store,
            episode,
            CALL,
            nodes.get_files(store, origin),
            origin.candidate_key,
            origin.note,
            parent_id=None,
            marks=Marks(origin.canonical_key, origin.behaviour, origin.sketch),
        )
        node = nodes.finish(store, node.id, evaluation_id, status, as_score, diagnosis)
        archive.add(store, node, SEEDS)
        episodes.finish(store, replace(episode, state="done"), "forked", None, False)
        return node


def origin_of(store: Store, run: Run, node: Node) -> Node | None:
    """The node that `node` of the run is a copy of, as long as its run is kept; None for any other node."""
    if node.call_id != CALL or node.island != SEEDS or run.forked_node is None:
        return None
    row = store.row(
        "SELECT * FROM nodes WHERE id = :id AND run_id = :run",
        {"id": run.forked_node, "run": run.forked_run},
    )
    return Node(**row) if row else None
