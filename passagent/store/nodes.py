"""Nodes: the candidates of the search tree. A node goes proposed -> evaluating -> done, failures included."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from passagent.errors import UsageError
from passagent.store.database import Store, now
from passagent.store.episodes import Episode, get_episode
from passagent.store.runs import SEEDS, Run


@dataclass(frozen=True)
class Node:
    """A row of `nodes`: one candidate and what became of it."""

    id: int
    run_id: str
    parent_id: int | None
    """The candidate it was made from; None: from the task itself."""
    island: int
    episode_id: int
    call_id: str
    """The tool call that proposed it: one node for each, however often the call is repeated after a crash."""
    state: str
    status: str | None
    """The evaluation's status (ok, mismatch, ...); None until done, or CANCELLED."""
    as_score: float | None
    note: str
    """First line of the first pass's docstring."""
    candidate_key: str
    """The key of the candidate's files (`Store.get_files`)."""
    repeat_of: int | None
    """The earlier node of the same island, or of the seeds, that is the same program."""
    evaluation_id: int | None
    diagnosis: str | None
    """JSON; `diagnosed` is what it says."""
    created_at: str
    evaluated_at: str | None
    number: int
    """The episode's number: with `place` it decides ties, the same in every run of the same seed."""
    place: int
    """1, 2, ... in its episode."""
    canonical_key: str
    """Equal for candidates that differ in comments, docstrings and formatting only."""
    profiles: str | None = None
    """JSON: its StoredProfile with and without hardware counters; None: it was not profiled."""

    @property
    def fitness(self) -> float:
        """The AS of a correct node; one that was not timed comes after every timed one."""
        return UNTIMED if self.as_score is None else self.as_score

    @property
    def correct_as(self) -> float | None:
        """The AS of a correct node; None where it is not correct or was not timed."""
        return self.as_score if self.status == "ok" else None

    @property
    def rank(self) -> tuple[float, int, int]:
        """The better node has the higher rank; of equal ones the earlier, by episode and place, not by id."""
        return self.fitness, -self.number, -self.place

    @property
    def diagnosed(self) -> dict[str, Any] | None:
        """The diagnosis as plain data; None: there is none."""
        return None if self.diagnosis is None else json.loads(self.diagnosis)


@dataclass(frozen=True)
class StoredProfile:
    """The stored measurement of what limits a node."""

    deep: bool
    """Measured with hardware counters."""
    text: str
    """The text that `passagent profile` prints."""
    record: str
    """JSON: a profile_record.Profile, and its evidence."""
    created_at: str


SAME_PROGRAM = "substr(canonical_key, 1, 16) = substr(:program, 1, 16) AND +canonical_key = :program"
"""In a query, as the index knows it. The plus keeps SQLite from putting the key into the substr, too."""
UNTIMED = -1.0
"""Stands for the AS of a correct node that was not timed: every timed one is better."""


def propose(
    store: Store, episode: Episode, call_id: str, files: dict[str, str], note: str, program: str
) -> Node:
    """The node of this tool call: made as `proposed`, or the one that an earlier try of the call made.

    It is made from the one before it in its episode, the first from the episode's parent. A call id that some
    servers give to every call is made distinct when the files are others. `program`: its canonical_key.
    """
    with store.transaction():
        key = store.keep_files(files)
        earlier = {node.call_id: node for node in of_episode(store, episode.id)}
        name, count = call_id, 1
        while node := earlier.get(name):
            if node.candidate_key == key:
                return node
            count += 1
            name = f"{call_id}#{count}"
        parents = [node.id for node in earlier.values() if node.call_id != call_id]
        [same] = store.rows(
            f"SELECT min(id) AS id FROM nodes WHERE run_id = :run AND {SAME_PROGRAM} "
            "AND island IN (:island, :seeds)",
            {"run": episode.run_id, "island": episode.island, "seeds": SEEDS, "program": program},
        )
        node_id = store.insert(
            "nodes",
            run_id=episode.run_id,
            parent_id=parents[-1] if parents else episode.parent_id,
            island=episode.island,
            episode_id=episode.id,
            number=episode.number,
            place=len(earlier) + 1,
            call_id=name,
            state="proposed",
            note=note,
            candidate_key=key,
            canonical_key=program,
            repeat_of=same["id"],
            created_at=now(),
        )
        return get_node(store, node_id)


def start(store: Store, node_id: int) -> bool:
    """The node is evaluated from now on; False while an equal one of the run is."""
    started = store.execute(
        # + : by the index of the few nodes that are not done, not by the many that may be equal
        "UPDATE nodes SET state = 'evaluating', status = NULL WHERE id = :id AND NOT EXISTS "
        "(SELECT 1 FROM nodes AS other WHERE other.run_id = nodes.run_id AND other.state != 'done' "
        "AND +other.canonical_key = nodes.canonical_key AND other.state = 'evaluating' AND other.id != :id)",
        {"id": node_id},
    )
    return bool(started.rowcount)


def give_up(store: Store, node_id: int) -> None:
    """The evaluation of the node did not come to its end: it may be begun again."""
    store.execute(
        "UPDATE nodes SET state = 'proposed' WHERE id = :id AND state = 'evaluating'", {"id": node_id}
    )


CANCELLED = "cancelled"


def cancel(store: Store, node_id: int) -> None:
    """The node is not to be evaluated; who proposed it no longer wants it. It may be proposed again."""
    store.execute(
        "UPDATE nodes SET state = 'proposed', status = :status WHERE id = :id AND state != 'done'",
        {"id": node_id, "status": CANCELLED},
    )


def finish(
    store: Store, node_id: int, evaluation_id: int, status: str, as_score: float | None, diagnosis: str | None
) -> Node:
    """The node is done, with a `diagnosis` as JSON; its island's best and count follow with it."""
    with store.transaction():
        store.execute(
            # a program measured twice is not better for that
            "UPDATE islands SET nodes = nodes + (state != 'done'), "
            "best_node = CASE WHEN is_best THEN :id ELSE best_node END, "
            "best_as = CASE WHEN is_best THEN :score ELSE best_as END "
            "FROM (SELECT run_id AS run, nodes.island AS place, state, :is_ok AND repeat_of IS NULL "
            "AND (best_node IS NULL OR coalesce(:score, -1) > coalesce(best_as, -1)) AS is_best "
            "FROM nodes JOIN islands USING (run_id, island) WHERE nodes.id = :id) "
            "WHERE run_id = run AND island = place",
            {"id": node_id, "score": as_score, "is_ok": int(status == "ok")},
        )
        outcome = {"status": status, "as_score": as_score, "diagnosis": diagnosis}
        store.update(
            "nodes", node_id, state="done", evaluation_id=evaluation_id, evaluated_at=now(), **outcome
        )
        return get_node(store, node_id)


def get_node(store: Store, node_id: int) -> Node:
    """The node of this id. Raises UsageError."""
    node = store.one(Node, "SELECT * FROM nodes WHERE id = :id", {"id": node_id})
    if node is None:
        raise UsageError(f"{node_id}: no such node in {store.runs_dir}; passagent show RUN lists a run's")
    return node


def get_files(store: Store, node: Node) -> dict[str, str]:
    """The node's candidate: file name to text."""
    return store.get_files(node.candidate_key)


def get_plans(store: Store, node: Node) -> dict[str, str]:
    """The files of what was recorded and measured of a correct node; empty where nothing was."""
    if node.evaluation_id is None:
        return {}
    row = store.row("SELECT plans FROM evaluations WHERE id = :id", {"id": node.evaluation_id})
    return store.get_files(row["plans"]) if row and row["plans"] else {}


def of_episode(store: Store, episode_id: int) -> list[Node]:
    """The episode's nodes, in the order they were made."""
    return _nodes(store, "WHERE episode_id = :episode ORDER BY id", {"episode": episode_id})


def correct_of_episode(store: Store, episode_id: int) -> list[Node]:
    """The episode's correct nodes, in the order they were made."""
    return [node for node in of_episode(store, episode_id) if node.status == "ok"]


def distinct(correct: Iterable[Node]) -> list[Node]:
    """The best node of each program among correct ones, the best first."""
    programs: dict[str, Node] = {}
    for node in sorted(correct, key=lambda node: node.rank, reverse=True):
        programs.setdefault(node.canonical_key, node)
    return list(programs.values())


def newest_before(store: Store, episode: Episode, limit: int, same_start: bool = False) -> list[Node]:
    """Nodes of the island's last `limit` episodes before this one, the newest episode's first.

    `same_start`: of those that started from the same parent.
    """
    return _nodes(
        store,
        "WHERE state = 'done' AND episode_id IN (SELECT id FROM episodes WHERE run_id = :run "
        f"AND island = :island AND number < :number {'AND parent_id IS :parent' if same_start else ''} "
        "ORDER BY number DESC LIMIT :limit) ORDER BY number DESC, id LIMIT 3 * :limit + 1",
        {
            "run": episode.run_id,
            "island": episode.island,
            "number": episode.number,
            "parent": episode.parent_id,
            "limit": limit,
        },
    )


def of_task(store: Store, task_key: str, start: int, limit: int) -> list[Node]:
    """The nodes of all runs of a task, the newest first, without the first `start`."""
    return store.all(
        Node,
        "SELECT nodes.* FROM nodes JOIN runs ON runs.id = run_id WHERE task_key = :task "
        "ORDER BY nodes.id DESC LIMIT :limit OFFSET :start",
        {"task": task_key, "start": start, "limit": limit},
    )


def twins(store: Store, node: Node, limit: int) -> list[Node]:
    """Evaluated nodes of any run that are the same program as `node` in other files, the newest first."""
    return store.all(
        Node,
        "SELECT nodes.* FROM nodes JOIN evaluations ON evaluations.id = evaluation_id "
        f"AND evaluations.candidate_key = nodes.candidate_key WHERE {SAME_PROGRAM} "
        "AND nodes.candidate_key != :files ORDER BY nodes.id DESC LIMIT :limit",
        {"program": node.canonical_key, "files": node.candidate_key, "limit": limit},
    )


PLANTED = "planted"
"""Stands for the tool call that proposed a seed which no episode wrote: a fork's or a directory's."""


def planted(store: Store, run_id: str) -> Node | None:
    """The run's planted seed, if it has one."""
    where = "WHERE run_id = :run AND island = :seeds AND call_id = :call"
    return next(iter(_nodes(store, where, {"run": run_id, "seeds": SEEDS, "call": PLANTED})), None)


def origin_of(store: Store, run: Run, node: Node) -> Node | None:
    """The node that `node` of the run is a copy of, as long as its run is kept; None for any other node."""
    if node.call_id != PLANTED or node.island != SEEDS or run.forked_node is None:
        return None
    names = {"id": run.forked_node, "run": run.forked_run}
    return next(iter(_nodes(store, "WHERE id = :id AND run_id = :run", names)), None)


def author_of(store: Store, run: Run, node: Node) -> str:
    """Name the author of a node: a model, or a seed's origin (`expert`, `library FILE, RUN`, `directory
    DIR`)."""
    return get_episode(store, node.episode_id).model or run.model


def of_run(store: Store, run_id: str) -> list[Node]:
    """All nodes of a run, in the order they were made."""
    return _nodes(store, "WHERE run_id = :run ORDER BY id", {"run": run_id})


def unfinished(store: Store, run_id: str) -> list[Node]:
    """Nodes that are proposed or were being evaluated."""
    return _nodes(store, "WHERE run_id = :run AND state != 'done' ORDER BY id", {"run": run_id})


def ancestors(store: Store, node: Node, limit: int) -> list[Node]:
    """The chain from the node's parent towards the task, at most `limit`, the nearest first."""
    chain = [node]
    while chain[-1].parent_id is not None and len(chain) <= limit:
        chain.append(get_node(store, chain[-1].parent_id))
    return chain[1:]


def best_of_island(
    store: Store, run_id: str, island: int, limit: int, before: float = math.inf
) -> list[Node]:
    """The island's correct nodes of episodes `before` this number, with distinct files, the best first."""
    return _nodes(
        store,
        "WHERE run_id = :run AND island = :island AND status = 'ok' AND repeat_of IS NULL "
        "AND number < :before ORDER BY as_score DESC, number, place LIMIT :limit",
        {"run": run_id, "island": island, "limit": limit, "before": before},
    )


def migrants(store: Store, run_id: str, island: int) -> list[Node]:
    """Elites of other islands that the island's episodes started from."""
    return _nodes(
        store,
        "WHERE id IN (SELECT parent_id FROM episodes "
        "WHERE run_id = :run AND island = :island AND migration IS NOT NULL)",
        {"run": run_id, "island": island},
    )


def latest_failures(store: Store, run_id: str, island: int, limit: int) -> list[Node]:
    """The island's newest nodes that are not correct."""
    return _nodes(
        store,
        "WHERE run_id = :run AND island = :island AND state = 'done' AND status != 'ok' "
        "ORDER BY id DESC LIMIT :limit",
        {"run": run_id, "island": island, "limit": limit},
    )


def counts(store: Store, run_id: str) -> dict[int, dict[str, int]]:
    """How many nodes of each status every island has."""
    result: dict[int, dict[str, int]] = {}
    for row in store.rows(
        "SELECT island, coalesce(status, state) AS status, count(*) AS n FROM nodes "
        "WHERE run_id = :run GROUP BY 1, 2",
        {"run": run_id},
    ):
        result.setdefault(row["island"], {})[row["status"]] = row["n"]
    return result


def _nodes(store: Store, where: str, parameters: dict[str, Any]) -> list[Node]:
    return store.all(Node, f"SELECT * FROM nodes {where}", parameters)


def keep_profile(store: Store, run_id: str, candidate_key: str, deep: bool, text: str, record: str) -> None:
    """Keep a profile of the run's newest node with these files; it replaces an earlier one."""
    profile = {"deep": deep, "text": text, "record": record, "created_at": now()}
    store.execute(
        "UPDATE nodes SET profiles = json_patch(coalesce(profiles, '{}'), :profile) "
        "WHERE id = (SELECT max(id) FROM nodes "
        "WHERE run_id = :run AND candidate_key = :key AND state = 'done')",
        {"run": run_id, "key": candidate_key, "profile": json.dumps({"deep" if deep else "usual": profile})},
    )


def profiles_of(store: Store, node: Node) -> list[StoredProfile]:
    """The profiles of a node, and of its run's others of the same files; the newest first."""
    rows = store.rows(
        "SELECT profiles FROM nodes WHERE run_id = :run AND candidate_key = :key AND profiles IS NOT NULL",
        {"run": node.run_id, "key": node.candidate_key},
    )
    profiles = [StoredProfile(**stored) for row in rows for stored in json.loads(row["profiles"]).values()]
    return sorted(profiles, key=lambda profile: profile.created_at, reverse=True)
