"""Runs: made, found, listed, and what a person wants of them. Who drives one: store/sessions.py."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from passagent.errors import PassagentError, UsageError, closest
from passagent.store.database import Store, now

SEEDS = -1
"""The island of the seeds: nodes from before the first episode, seen by all islands."""
CLIENTS = "mcp"
"""Model of a run whose candidates come from clients of `passagent mcp`; each episode names its client."""


@dataclass(frozen=True)
class Run:
    """A row of `runs`: one search on one task."""

    id: str
    task: str
    task_path: str
    task_key: str
    operators: str
    """JSON list: the operator sequence of the task's first subgraph."""
    model: str
    device: str
    seed: int
    islands: int
    iters: int
    """Episodes over the life of the run."""
    config: str
    """JSON of the whole Config."""
    version: str
    state: str
    """`running`, `stopped` (can go on), `failed` (an error; can go on) or `finished`."""
    stop_reason: str | None
    created_at: str
    finished_at: str | None
    elapsed_s: float
    """Time searched, all sessions together, s."""
    input_tokens: int
    output_tokens: int
    evaluations: int
    """Candidates evaluated; answers from the store are not counted."""
    wanted: str
    """The request to the process that drives the run: `run`, `stop_after_episodes` or `stop`."""
    environment: str | None
    """Evaluator version and environment that the nodes' scores are of; None before the first session."""
    cost: float
    """The cost of all model calls, as far as prices are known, USD."""
    forked_run: str | None
    """The run that this one was forked from, which may be gone; None: it began with the task."""
    forked_node: int | None
    """Its node that is this run's seed."""
    subgraphs: str = "[]"
    """JSON list: the sha256 of each subgraph's model.py."""
    trial: int | None = None
    """The number of the trial that `collect` makes of a task with a model, from 0; None: not of `collect`."""
    gains: str | None = None
    """JSON: a Gains; None before the first episode ended."""

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    @property
    def gained(self) -> Gains:
        """`gains` as a record."""
        return Gains(**json.loads(self.gains or "{}"))

    @property
    def is_served(self) -> bool:
        """Tell whether the candidates come from clients of `passagent mcp`, not from a search."""
        return self.model == CLIENTS

    @property
    def limit(self) -> int | None:
        """`iters`; None where clients begin as many episodes as they like."""
        return None if self.is_served else self.iters


@dataclass(frozen=True)
class Island:
    """A row of `islands`: what the search remembers of an island between episodes."""

    run_id: str
    island: int
    role: str
    best_node: int | None
    best_as: float | None
    stagnant: int
    """Episodes since the last gain or migration."""
    episodes: int
    """Finished."""
    nodes: int
    """Candidates judged."""


@dataclass(frozen=True)
class Gains:
    """The summed gain of a run over time; each episode that ends brings it up to date."""

    episodes: int = 0
    """Finished."""
    best_as: float | None = None
    """The run's best AS when the last one ended; at first that of the seeds."""
    marked_as: float | None = None
    """The best AS when progress was last counted."""
    stagnant: int = 0
    """Episodes since then."""
    searched_s: float = 0.0
    """Time searched when the last one ended."""
    gain: float = 0.0
    """Weighted sum of the episodes' gains, ln(AS)."""
    hours: float = 0.0
    """Weighted sum of the time between their ends, h."""
    headroom: float | None = None
    """The least headroom of their correct nodes, see docs/profiling.md; None: not known."""


def create_run(
    store: Store, *, roles: list[str], operators: list[str], subgraphs: Iterable[str] = (), **columns: Any
) -> Run:
    """A new run with an island for each of `roles`; `columns` are those of `runs` that a caller knows."""
    values = {
        **columns,
        "id": secrets.token_hex(4),
        "operators": json.dumps(operators),
        "subgraphs": json.dumps(list(subgraphs)),
        "islands": len(roles),
        "state": "stopped",
        "created_at": now(),
    }
    with store.transaction():
        store.insert("runs", **values)
        for island, role in enumerate(roles):
            store.insert("islands", run_id=values["id"], island=island, role=role)
    return get_run(store, values["id"])


def get_run(store: Store, run_id: str) -> Run:
    """The run of this exact id."""
    run = store.one(Run, "SELECT * FROM runs WHERE id = :id", {"id": run_id})
    if run is None:
        raise UsageError(f"{run_id}: no such run in {store.runs_dir}; passagent runs lists them")
    return run


def find_run(store: Store, name: str) -> Run:
    """The run that a person means by an id, a unique prefix of one, or `last`. Raises UsageError."""
    if name == "last":
        newest = store.one(Run, "SELECT * FROM runs ORDER BY rowid DESC LIMIT 1")
        if newest is None:
            raise UsageError(f"{store.runs_dir}: holds no runs; start one with passagent run")
        return newest
    matches = store.all(
        Run,
        "SELECT * FROM runs WHERE substr(id, 1, length(:name)) = :name AND :name != '' LIMIT 6",
        {"name": name},
    )
    if not matches:
        near = closest(name, ["last", *(run.id for run in list_runs(store))])
        raise UsageError(f"{name}: no such run in {store.runs_dir}{near or '; passagent runs lists them'}")
    if len(matches) > 1:
        raise UsageError(
            f"{name}: means several runs ({', '.join(run.id for run in matches)}); write more of the id"
        )
    return matches[0]


def list_runs(store: Store) -> list[Run]:
    """All runs, the newest first."""
    return store.all(Run, "SELECT * FROM runs ORDER BY rowid DESC")


def islands(store: Store, run_id: str) -> list[Island]:
    """The run's islands in order; that of the seeds is not among them."""
    return [island for island in all_islands(store, run_id) if island.island != SEEDS]


def all_islands(store: Store, run_id: str) -> list[Island]:
    """The run's islands in order, first that of the seeds, if it has any."""
    return store.all(Island, "SELECT * FROM islands WHERE run_id = :run ORDER BY island", {"run": run_id})


def get_island(store: Store, run_id: str, island: int) -> Island:
    """One island of a run, or that of its seeds."""
    row = store.one(
        Island,
        "SELECT * FROM islands WHERE run_id = :run AND island = :island",
        {"run": run_id, "island": island},
    )
    if row is None:
        raise PassagentError(f"{run_id}: has no island {island}")
    return row


def want(store: Store, run_id: str, what: Literal["run", "stop_after_episodes", "stop"]) -> None:
    """Ask the process that drives the run to go on or to stop; it notices within a second.

    `stop_after_episodes`: the episodes under way are finished, then it stops. `stop`: it stops where one
    Ctrl-C would. The next session that begins on a run at rest asks for `run` again.
    """
    update_run(store, run_id, wanted=what)


def update_run(store: Store, run_id: str, **columns: Any) -> None:
    """Store these columns of the run."""
    values = ", ".join(f"{name} = :{name}" for name in columns)
    store.execute(f"UPDATE runs SET {values} WHERE id = :run", {**columns, "run": run_id})


_OF_A_RUN = ("sessions", "islands", "calls", "nodes", "episodes", "confirmations", "distilled_hints")
"""The tables whose rows belong to a run."""


def remove_run(store: Store, run_id: str) -> dict[str, int]:
    """Delete all rows of a run, in the open transaction, of a store opened for it (`for_removal`).

    Return the numbers of its `nodes`, of `evaluations` and `messages` that no other run refers to, and of
    `hints` distilled from its episodes. What is known of hints stays.
    """
    names = {"run": run_id}
    hints = store.rows("SELECT 1 FROM distilled_hints WHERE run_id = :run AND state = 'written'", names)
    evaluations = store.execute(  # also the finalists' rounds as one evaluation, to which no row refers
        "DELETE FROM evaluations WHERE (id IN (SELECT evaluation_id FROM nodes WHERE run_id = :run) "
        "OR candidate_key IN (SELECT candidate_key FROM nodes WHERE run_id = :run)) "
        "AND candidate_key NOT IN (SELECT candidate_key FROM nodes WHERE run_id != :run) AND id NOT IN "
        "(SELECT evaluation_id FROM nodes WHERE run_id != :run AND evaluation_id IS NOT NULL)",
        names,
    ).rowcount
    episodes = "(SELECT id FROM episodes WHERE run_id = :run)"
    store.execute(f"DELETE FROM steps WHERE episode_id IN {episodes}", names)
    messages = store.execute("DELETE FROM messages WHERE id NOT IN (SELECT message_id FROM steps)").rowcount
    counts = {
        table: store.execute(f"DELETE FROM {table} WHERE run_id = :run", names).rowcount
        for table in _OF_A_RUN
    }
    store.execute(
        "DELETE FROM files WHERE key NOT IN (SELECT candidate_key FROM nodes UNION ALL "
        "SELECT candidate_key FROM evaluations UNION ALL "  # what was measured for another run's twin of it
        "SELECT plans FROM evaluations WHERE plans IS NOT NULL)"
    )
    store.execute("DELETE FROM runs WHERE id = :run", names)
    return {"nodes": counts["nodes"], "evaluations": evaluations, "messages": messages, "hints": len(hints)}


def for_removal(store: Store) -> None:
    """Let rows be deleted in any order.

    Row by row, SQLite would look through whole tables for each deleted row. Not to be called in a
    transaction.
    """
    store.execute("PRAGMA foreign_keys = OFF", {})
