"""The checks that an example must pass before it leaves the database, and an export on disk later.

A node must be what was measured: its files have the key that they are stored under, its score is that of its
evaluation, which is the aggregate of its ES(t). Nothing that looks like a secret goes out, and nothing that
shares something with the tasks that a student will be judged on.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from passagent.data.export.example import Row
from passagent.data.export.selection import JudgedEpisode, Revision, read_episodes, reading_stores
from passagent.data.export.writing import read_manifest, read_rows
from passagent.errors import PassagentError
from passagent.evaluator.score import aggregate
from passagent.search.candidates import canonical_key
from passagent.store import evaluations
from passagent.store.database import Store
from passagent.store.redaction import redact
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks

_EQUAL = 1e-9
"""Relative: how far a score may be from the aggregate of its parts."""
_SHAPES = {
    "an AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})",
    "a GitLab token": r"\bglpat-[\w-]{20,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "a Google key": r"\bAIza[\w-]{35}",
    "a Slack token": r"\bxox[abprs]-[\w-]{10,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
}
"""A kind of secret, and its shape."""
_SHOWN = 3
"""Overlaps that are named; the others are counted."""


def check_secrets(name: str, data: Any, advice: str) -> None:
    """Raise PassagentError if `data`, plain data of what `name` names, holds what looks like a secret."""
    text = json.dumps(data, ensure_ascii=False)
    kind = next((kind for kind, shape in _SHAPES.items() if re.search(shape, text)), "a secret")
    if kind != "a secret" or redact(text) != text:
        raise PassagentError(f"{name}: holds what looks like {kind}; withdraw it, and {advice}")


def without(name: str) -> str:
    """Say how to leave out the example `name`."""
    return f"leave it out with --keep \"id != '{name}'\""


def check_node(store: Store, name: str, revision: Revision) -> dict[str, str]:
    """Return the files of the node of `revision`. Raises PassagentError unless it is as it was measured."""
    files = store.get_files(revision.files)
    if not _is_as_measured(store, revision, files):
        raise PassagentError(
            f"{name}: node {revision.node} is not as it was measured: its files, status and AS are not those "
            f"of its evaluation; restore the database from a backup, or {without(name)}"
        )
    return files


def _is_as_measured(store: Store, revision: Revision, files: dict[str, str]) -> bool:
    if revision.evaluation_id is None:
        return revision.status != "ok"
    stored = store.row(
        "SELECT candidate_key AS key, status, as_score FROM evaluations WHERE id = :evaluation",
        {"evaluation": revision.evaluation_id},
    )
    if stored is None:
        return False
    key, score = stored["key"], stored["as_score"]
    if key != revision.files and (
        # the same program may be there with other comments and formatting
        canonical_key(files, revision.files) != canonical_key(store.get_files(key), key)
    ):
        return False
    figures = evaluations.get_evaluation(store, revision.evaluation_id, samples=False)
    total = None if figures["es"] is None else aggregate({int(t): es for t, es in figures["es"].items()})
    is_sum = total is score if None in (total, score) else math.isclose(total or 0.0, score, rel_tol=_EQUAL)
    return (
        is_sum
        and revision.status == stored["status"] == figures["status"]
        and revision.as_score in (None, score)
    )


def check_overlap(examples: Iterable[Row], against: Sequence[str]) -> None:
    """Raise PassagentError, naming the tasks, if an example shares something with a task of `against`.

    An example is its `task`, `task_key`, `operators` and `subgraphs`. Raises UsageError, TaskError.
    """
    shares: dict[str | tuple[str, ...], str] = {}
    for task in map(load_task, find_tasks(against) if against else ()):
        shares[task.key] = f"is the task {task.name}"
        shares[tuple(task.operators)] = f"has the operator sequence of {task.name}"
        shares |= {graph.source_key: f"has the subgraph {task.name}/{graph.name}" for graph in task.subgraphs}
    overlaps: dict[str, None] = {}
    for example in examples:
        operators = example["operators"]
        words = operators.split() if isinstance(operators, str) else operators
        keys = [example["task_key"], tuple(words), *example["subgraphs"]]
        if share := next((shares[key] for key in keys if key in shares), None):
            overlaps[f"{example['task']} {share}"] = None
    if overlaps:
        more = f" and {len(overlaps) - _SHOWN} more" if len(overlaps) > _SHOWN else ""
        raise PassagentError(
            f"training and evaluation tasks overlap: {'; '.join(list(overlaps)[:_SHOWN])}{more}; leave "
            "them out, such as with --keep \"task != '...'\""
        )


def check_directory(directory: Path, against: Sequence[str], runs_dirs: Sequence[str]) -> int:
    """Return the number of rows, all of which are in order.

    Checked are each row's sha256, that no file has other rows, secrets, overlap with the tasks of `against`
    and, where there are `runs_dirs`, that every candidate is there with the files and the score that
    provenance says. Raises UsageError if `directory` is no export, and PassagentError for what is wrong.
    """
    manifest = read_manifest(directory)
    rows = []
    with reading_stores(runs_dirs) as stores:
        episodes = {episode.columns["id"]: episode for episode in read_episodes(stores)}
        for row, text in read_rows(directory):
            rows.append(row)
            place = f"{directory / row['file']}:{row['line']}"
            if text is None or hashlib.sha256(text.encode()).hexdigest() != row["sha256"]:
                raise PassagentError(f"{place}: not the row that was written; export again")
            check_secrets(place, json.loads(text), "export again without")
            if stores:
                _check_row(row, episodes, place)
    check_overlap(rows, against)
    written: int = manifest["rows"]
    lines = sum(path.read_bytes().count(b"\n") for name in manifest["files"] for path in directory.glob(name))
    if not len(rows) == lines == written:
        raise PassagentError(f"{directory}: has {lines} rows, {written} were written; export again")
    return written


def _check_row(row: Row, episodes: dict[str, JudgedEpisode], place: str) -> None:
    """Compare the candidates of a row with the database. Raises PassagentError."""
    name = f"{row['run']}/{row['episode']}"
    if name not in episodes:
        raise PassagentError(f"{place}: the database has no finished episode {name}")
    revisions = {revision.node: revision for revision in episodes[name].revisions}
    for node in row["nodes"]:
        revision = revisions.get(node["node"])
        if revision is None or any(getattr(revision, key) != value for key, value in node.items()):
            raise PassagentError(f"{place}: node {node['node']} is another one in the database")
        check_node(episodes[name].store, row["id"], revision)
