"""Planted seeds: a run begins with a candidate that no episode of it wrote.

It is a copy of another run's node (a fork; of that run nothing is needed any more), or a directory's files.
"""

from __future__ import annotations

from passagent.store import nodes
from passagent.store.database import Store
from passagent.store.episodes import get_episode, plant_episode
from passagent.store.nodes import Node, Proposal
from passagent.store.runs import SEEDS, Run

CALL = "planted"
"""Stands for the tool call that proposed a seed."""


def plant(
    store: Store,
    run: Run,
    proposal: Proposal,
    *,
    number: int,
    model: str | None,
) -> Node:
    """Make `proposal` a seed of the new `run`: a node still to be judged, of episode `number`, below 1.

    It is on the island of the seeds, which all islands see. `model`: who wrote it, or where it is from.
    """
    with store.transaction():
        return nodes.propose(store, plant_episode(store, run, number, model), CALL, proposal, None)


def author_of(store: Store, run: Run, node: Node) -> str:
    """Name the author of a node: a model, or a seed's origin (`expert`, `library FILE, RUN`, `directory
    DIR`)."""
    return get_episode(store, node.episode_id).model or run.model


def seed_origins(store: Store, run_id: str) -> list[str]:
    """Where the run's seeds are from, see author_of."""
    sql = "SELECT DISTINCT model FROM episodes WHERE run_id = :run AND island = :seeds AND model IS NOT NULL"
    return [row["model"] for row in store.rows(sql, {"run": run_id, "seeds": SEEDS})]


def planted(store: Store, run_id: str) -> Node | None:
    """The run's planted seed, if it has one."""
    return store.one(
        Node,
        "SELECT * FROM nodes WHERE run_id = :run AND island = :seeds AND call_id = :call",
        {"run": run_id, "seeds": SEEDS, "call": CALL},
    )


def plant_fork(store: Store, run: Run, origin: Node, number: int) -> None:
    """Make a copy of `origin`, a node of another run, the seed of the new `run`."""
    with store.transaction():
        store.execute(
            "UPDATE runs SET forked_run = :from, forked_node = :node WHERE id = :run",
            {"run": run.id, "from": origin.run_id, "node": origin.id},
        )
        plant(
            store,
            run,
            Proposal(nodes.get_files(store, origin), origin.note, origin.canonical_key),
            number=number,
            model=get_episode(store, origin.episode_id).model,
        )


def origin_of(store: Store, run: Run, node: Node) -> Node | None:
    """The node that `node` of the run is a copy of, as long as its run is kept; None for any other node."""
    if node.call_id != CALL or node.island != SEEDS or run.forked_node is None:
        return None
    row = store.row(
        "SELECT * FROM nodes WHERE id = :id AND run_id = :run",
        {"id": run.forked_node, "run": run.forked_run},
    )
    return Node(**row) if row else None
