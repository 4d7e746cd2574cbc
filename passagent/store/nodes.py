"""Nodes: the candidates of the search tree. A node goes proposed -> evaluating -> done, failures included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from passagent.errors import UsageError
from passagent.store.database import Store, now
from passagent.store.episodes import Episode
from passagent.store.runs import SEEDS


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
    """Of the evaluation (DESIGN: ok, mismatch, ...); None until done."""
    as_score: float | None
    note: str
    """First line of the first pass's docstring."""
    files: str
    """Key of the object that holds the candidate's files."""
    files_path: str
    """That object's path under the runs directory."""
    candidate_key: str
    repeat_of: int | None
    """The earlier node of the same island with equal files."""
    evaluation_id: int | None
    diagnosis: str | None
    """JSON of the diagnosis."""
    owner: str | None
    """The process that evaluates it."""
    created_at: str
    evaluated_at: str | None
    number: int
    """Of its episode: with `place` what decides ties, the same in every run of the same seed."""
    place: int
    """1, 2, ... in its episode."""
    canonical_key: str
    """Equal for candidates that differ in comments, formatting and names of files only."""
    behaviour: str | None
    """What it fuses, in how many kernels, in which language; None: it cannot be read."""
    sketch: bytes | None
    """Of its tokens, to find what is nearly the same."""


class Marks(NamedTuple):
    """What a candidate's source tells without running it."""

    canonical_key: str
    behaviour: str | None = None
    sketch: bytes | None = None


def propose(
    store: Store,
    episode: Episode,
    call_id: str,
    files: dict[str, str],
    candidate_key: str,
    note: str,
    parent_id: int | None,
    marks: Marks | None = None,
) -> Node:
    """The node of this tool call: made as `proposed`, or the one that an earlier try of the call made.

    Without `marks` only equal files count as the same. A call id that some servers give to every call is made
    distinct when the files are others.
    """
    key = store.objects.put_files(files)
    marks = marks or Marks(candidate_key)
    with store.transaction():
        name, count = call_id, 1
        while row := store.row(
            "SELECT * FROM nodes WHERE episode_id = :episode AND call_id = :call",
            {"episode": episode.id, "call": name},
        ):
            if row["files"] == key:
                return Node(**row)
            count += 1
            name = f"{call_id}#{count}"
        first = store.row(
            "SELECT min(id) AS id FROM nodes WHERE run_id = :run AND canonical_key = :key "
            "AND island = :island",
            {"run": episode.run_id, "key": marks.canonical_key, "island": episode.island},
        )
        cursor = store.execute(
            "INSERT INTO nodes (run_id, parent_id, island, episode_id, call_id, state, note, files, "
            "candidate_key, repeat_of, created_at, number, canonical_key, behaviour, sketch, place) "
            "VALUES (:run, :parent, :island, :episode, :call, 'proposed', :note, :files, :key, :repeat_of, "
            ":at, :number, :canonical, :behaviour, :sketch, "
            "(SELECT count(*) + 1 FROM nodes WHERE episode_id = :episode))",
            {
                "run": episode.run_id,
                "parent": parent_id,
                "island": episode.island,
                "episode": episode.id,
                "number": episode.number,
                "call": name,
                "note": note,
                "files": key,
                "key": candidate_key,
                "repeat_of": first["id"] if first else None,
                "at": now(),
                "canonical": marks.canonical_key,
                "behaviour": marks.behaviour,
                "sketch": marks.sketch,
            },
        )
        assert cursor.lastrowid is not None
        return get_node(store, cursor.lastrowid)


def start(store: Store, node_id: int, owner: str) -> bool:
    """The node is evaluated by `owner` from now on; False while an equal one of the run is, by whomever."""
    with store.transaction():
        equal = store.row(
            # + : by the index of the few nodes that are not done, not by the many that may be equal
            "SELECT 1 FROM nodes, (SELECT run_id AS run, canonical_key AS key FROM nodes WHERE id = :id) "
            "WHERE run_id = run AND state != 'done' AND +canonical_key = key AND state = 'evaluating' "
            "AND id != :id",
            {"id": node_id},
        )
        if equal is not None:
            return False
        store.execute(
            "UPDATE nodes SET state = 'evaluating', owner = :owner WHERE id = :id",
            {"owner": owner, "id": node_id},
        )
        return True


def give_up(store: Store, node_id: int, owner: str) -> None:
    """The owner's evaluation of the node did not come to its end: it may be begun again."""
    store.execute(
        "UPDATE nodes SET state = 'proposed', owner = NULL WHERE id = :id AND owner = :owner",
        {"id": node_id, "owner": owner},
    )


def finish(
    store: Store, node_id: int, evaluation_id: int, status: str, as_score: float | None, diagnosis: str | None
) -> Node:
    """The node is done; its island's best and count follow in the same transaction."""
    with store.transaction():
        store.execute(
            "UPDATE islands SET nodes = nodes + 1 WHERE (run_id, island) = "
            "(SELECT run_id, island FROM nodes WHERE id = :id AND state != 'done')",
            {"id": node_id},
        )
        store.execute(
            "UPDATE nodes SET state = 'done', status = :status, as_score = :score, "
            "evaluation_id = :evaluation, diagnosis = :diagnosis, owner = NULL, evaluated_at = :at "
            "WHERE id = :id",
            {
                "status": status,
                "score": as_score,
                "evaluation": evaluation_id,
                "diagnosis": diagnosis,
                "at": now(),
                "id": node_id,
            },
        )
        node = get_node(store, node_id)
        if status == "ok" and node.repeat_of is None:  # a program measured twice is not better for that
            store.execute(
                "UPDATE islands SET best_node = :id, best_as = :score "
                "WHERE run_id = :run AND island = :island "
                "AND (best_node IS NULL OR coalesce(:score, -1) > coalesce(best_as, -1))",
                {"id": node_id, "score": as_score, "run": node.run_id, "island": node.island},
            )
    return node


def get_node(store: Store, node_id: int) -> Node:
    """The node of this id. Raises UsageError."""
    row = store.row("SELECT * FROM nodes WHERE id = :id", {"id": node_id})
    if row is None:
        raise UsageError(
            f"{node_id}: no such node in {store.runs_dir}; passagent show RUN lists a run's nodes"
        )
    return Node(**row)


def get_files(store: Store, node: Node) -> dict[str, str]:
    """The node's candidate: file name to text."""
    return store.objects.get_files(node.files)


def of_episode(store: Store, episode_id: int) -> list[Node]:
    """The episode's nodes, in the order they were made."""
    return _nodes(store, "WHERE episode_id = :episode ORDER BY id", {"episode": episode_id})


def of_number(store: Store, run_id: str, number: int) -> list[Node]:
    """The nodes of the run's episode `number`, in the order they were made."""
    return _nodes(
        store,
        "WHERE episode_id = (SELECT id FROM episodes WHERE run_id = :run AND number = :number) ORDER BY id",
        {"run": run_id, "number": number},
    )


def twins(store: Store, node: Node, limit: int) -> list[Node]:
    """Evaluated nodes of any run that are the same program as `node` in other files, the newest first."""
    rows = store.rows(
        "SELECT nodes.* FROM nodes JOIN evaluations ON evaluations.id = evaluation_id "
        "AND evaluations.candidate_key = nodes.candidate_key WHERE canonical_key = :key "
        "AND nodes.candidate_key != :files ORDER BY nodes.id DESC LIMIT :limit",
        {"key": node.canonical_key, "files": node.candidate_key, "limit": limit},
    )
    return [Node(**row) for row in rows]


def first_of_program(store: Store, run_id: str, island: int, canonical_key: str) -> Node | None:
    """The island's first node that is done and has this program."""
    found = _nodes(
        store,
        "WHERE canonical_key = :key AND run_id = :run AND island = :island AND state = 'done' "
        "ORDER BY number, place LIMIT 1",
        {"key": canonical_key, "run": run_id, "island": island},
    )
    return next(iter(found), None)


def of_run(store: Store, run_id: str) -> list[Node]:
    """All nodes of a run, in the order they were made."""
    return _nodes(store, "WHERE run_id = :run ORDER BY id", {"run": run_id})


def unfinished(store: Store, run_id: str) -> list[Node]:
    """Nodes that are proposed or were being evaluated."""
    return _nodes(store, "WHERE run_id = :run AND state != 'done' ORDER BY id", {"run": run_id})


def ancestors(store: Store, node_id: int, limit: int) -> list[Node]:
    """The chain from the node's parent towards the task, at most `limit`, the nearest first."""
    rows = store.rows(
        "WITH RECURSIVE chain (id, parent_id, depth) AS ("
        "  SELECT id, parent_id, 0 FROM nodes WHERE id = :id"
        "  UNION ALL"
        "  SELECT nodes.id, nodes.parent_id, depth + 1 FROM chain JOIN nodes ON nodes.id = chain.parent_id"
        "  WHERE depth < :limit"
        ") SELECT nodes.* FROM chain JOIN nodes ON nodes.id = chain.id WHERE depth > 0 ORDER BY depth",
        {"id": node_id, "limit": limit},
    )
    return [Node(**row) for row in rows]


def siblings(store: Store, run_id: str, island: int, parent_id: int | None, limit: int) -> list[Node]:
    """What the island's newest episodes that started from `parent_id` (None: the task) made, newest first."""
    started_from = "parent_id = :parent" if parent_id is not None else "parent_id IS NULL"
    return _nodes(
        store,
        "WHERE state = 'done' AND episode_id IN (SELECT id FROM episodes WHERE run_id = :run "
        f"AND island = :island AND {started_from} ORDER BY number DESC LIMIT :limit) "
        "ORDER BY id DESC LIMIT :limit",
        {"run": run_id, "island": island, "parent": parent_id, "limit": limit},
    )


def best_of_island(store: Store, run_id: str, island: int, limit: int) -> list[Node]:
    """The island's correct nodes with distinct files, the best first."""
    return _nodes(
        store,
        "WHERE run_id = :run AND island = :island AND status = 'ok' AND repeat_of IS NULL "
        "ORDER BY as_score DESC, number, place LIMIT :limit",
        {"run": run_id, "island": island, "limit": limit},
    )


def best_before(store: Store, run_id: str, island: int, number: int) -> Node | None:
    """The best correct node that the island's episodes below `number` made."""
    found = _nodes(
        store,
        "WHERE run_id = :run AND island = :island AND status = 'ok' AND repeat_of IS NULL "
        "AND number < :number ORDER BY as_score DESC, number, place LIMIT 1",
        {"run": run_id, "island": island, "number": number},
    )
    return next(iter(found), None)


def best_as_before(store: Store, node: Node) -> float | None:
    """The best AS that the node's island knew of when the node was made: its own, migrants and seeds."""
    own = (
        "SELECT as_score FROM (SELECT as_score FROM nodes WHERE run_id = :run AND island = :island "
        "AND status = 'ok' AND repeat_of IS NULL AND +id < :id ORDER BY as_score DESC LIMIT 1)"
    )
    migrated = (
        "SELECT as_score FROM elite_migrations JOIN nodes ON nodes.id = node_id "
        "WHERE elite_migrations.run_id = :run AND to_island = :island "
        "AND elite_migrations.episode_id <= :episode"
    )
    row = store.row(
        f"SELECT max(as_score) AS best FROM ({own} UNION ALL {migrated} UNION ALL "
        "SELECT best_as FROM islands WHERE run_id = :run AND island = :seeds AND island != :island)",
        {
            "run": node.run_id,
            "island": node.island,
            "id": node.id,
            "episode": node.episode_id,
            "seeds": SEEDS,
        },
    )
    return row["best"] if row else None


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
    return [Node(**row) for row in store.rows(f"SELECT * FROM nodes {where}", parameters)]
