"""Runs: made, found, listed, and what a person wants of them. Who drives one: store/sessions.py."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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

    episodes: int
    """Finished."""
    best_as: float | None
    """The run's best AS when the last one ended."""
    marked_as: float | None
    """The best AS when progress was last counted."""
    stagnant: int
    """Episodes since then."""
    searched_s: float
    """Time searched when the last one ended."""
    gain: float
    """Weighted sum of the episodes' gains, ln(AS)."""
    hours: float
    """Weighted sum of the time between their ends, h."""
    headroom: float | None
    """The least headroom of their correct nodes, see docs/profiling.md; None: not known."""


@dataclass(frozen=True)
class Standing:
    """The state of a run and the request to it: all that its process polls."""

    wanted: str
    """The request to the process, as in Run.wanted."""
    evaluations: int
    tokens: int
    """Input and output together."""
    cost: float
    episodes: int
    """Finished, seeds not counted."""
    best_as: float | None
    """Seeds included."""
    stagnant: int
    """Episodes since the run's best AS last rose."""
    headroom: float | None
    """The least headroom of a correct node, see docs/profiling.md; None: not known."""


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
        store.execute(
            f"INSERT INTO runs ({', '.join(values)}) VALUES ({', '.join(':' + name for name in values)})",
            values,
        )
        for island, role in enumerate(roles):
            store.execute(
                "INSERT INTO islands (run_id, island, role) VALUES (:run, :island, :role)",
                {"run": values["id"], "island": island, "role": role},
            )
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


def standing(store: Store, run_id: str) -> Standing:
    """The run's standing now."""
    state = store.one(
        Standing,
        "SELECT wanted, evaluations, input_tokens + output_tokens AS tokens, cost, "
        "sum((island != :seeds) * islands.episodes) AS episodes, max(islands.best_as) AS best_as, "
        "coalesce(json_extract(gains, '$.stagnant'), 0) AS stagnant, "
        "json_extract(gains, '$.headroom') AS headroom "
        "FROM runs JOIN islands ON islands.run_id = runs.id WHERE runs.id = :run GROUP BY runs.id",
        {"run": run_id, "seeds": SEEDS},
    )
    if state is None:
        raise UsageError(f"{run_id}: no such run in {store.runs_dir}; passagent runs lists them")
    return state


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
    store.execute("UPDATE runs SET wanted = :what WHERE id = :run", {"what": what, "run": run_id})


def set_environment(store: Store, run_id: str, environment: str) -> None:
    """The nodes' scores are of this evaluator version and environment."""
    store.execute(
        "UPDATE runs SET environment = :environment WHERE id = :run",
        {"environment": environment, "run": run_id},
    )


def gains_of(store: Store, run_id: str) -> Gains | None:
    """The run's gains; None before its first episode ended."""
    stored = get_run(store, run_id).gains
    return None if stored is None else Gains(**json.loads(stored))


def save_gains(store: Store, run_id: str, gains: Gains) -> None:
    """Store what the run gained."""
    store.execute(
        "UPDATE runs SET gains = :gains WHERE id = :run", {"gains": json.dumps(vars(gains)), "run": run_id}
    )


def set_config(store: Store, run_id: str, *, config: str, iters: int, model: str, device: str) -> None:
    """Go on under changed settings."""
    store.execute(
        "UPDATE runs SET config = :config, iters = :iters, model = :model, device = :device WHERE id = :run",
        {"config": config, "iters": iters, "model": model, "device": device, "run": run_id},
    )


_OF_A_RUN = ("sessions", "islands", "calls", "nodes", "episodes", "confirmations", "distilled_hints")
"""The tables whose rows belong to a run."""


class Removed(NamedTuple):
    """The numbers of rows that were removed with a run."""

    nodes: int
    evaluations: int
    """Evaluations that no other run refers to."""
    messages: int
    """Messages that no other run's conversations hold."""
    hints: int
    """Distilled from its episodes."""


def remove_run(store: Store, run_id: str) -> Removed:
    """Delete all rows of a run, in the open transaction, of a store opened for it (`for_removal`).

    What is known of hints stays.
    """
    names = {"run": run_id}
    hints = store.execute("SELECT 1 FROM distilled_hints WHERE run_id = :run AND state = 'written'", names)
    evaluated = " UNION ".join(
        f"SELECT evaluation_id FROM {table} WHERE run_id {{is_it}} :run AND evaluation_id IS NOT NULL"
        for table in ("nodes", "confirmations")
    )
    evaluated += (  # and the finalists' rounds as one evaluation, which alone is timed and has no samples
        " UNION SELECT pooled.id FROM confirmations JOIN nodes ON nodes.id = node_id "
        "JOIN evaluations AS pooled ON pooled.candidate_key = nodes.candidate_key "
        "AND substr(pooled.candidate_key, 1, 16) = substr(nodes.candidate_key, 1, 16) "
        "WHERE confirmations.run_id {is_it} :run AND pooled.status = 'ok' AND pooled.as_score IS NOT NULL "
        "AND samples IS NULL"
    )
    written = len(hints.fetchall())
    evaluations = store.execute(
        f"DELETE FROM evaluations WHERE id IN ({evaluated.format(is_it='=')}) "
        f"AND id NOT IN ({evaluated.format(is_it='!=')})",
        names,
    ).rowcount
    episodes = "(SELECT id FROM episodes WHERE run_id = :run)"
    store.execute(f"DELETE FROM steps WHERE episode_id IN {episodes}", names)
    messages = store.execute(
        "DELETE FROM messages WHERE id NOT IN (SELECT message_id FROM steps)", {}
    ).rowcount
    counts = {
        table: store.execute(f"DELETE FROM {table} WHERE run_id = :run", names).rowcount
        for table in _OF_A_RUN
    }
    store.execute(
        "DELETE FROM files WHERE key NOT IN (SELECT candidate_key FROM nodes UNION ALL "
        "SELECT candidate_key FROM evaluations UNION ALL "  # what was measured for another run's twin of it
        "SELECT plans FROM evaluations WHERE plans IS NOT NULL)",
        {},
    )
    store.execute("DELETE FROM runs WHERE id = :run", names)
    return Removed(counts["nodes"], evaluations, messages, written)


def for_removal(store: Store) -> None:
    """Let rows be deleted in any order.

    Row by row, SQLite would look through whole tables for each deleted row. Not to be called in a
    transaction.
    """
    store.execute("PRAGMA foreign_keys = OFF", {})
