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

from passagent.data.export.selection import JudgedEpisode, Revision, read_episodes
from passagent.data.export.writing import provenance, read_manifest, texts
from passagent.errors import PassagentError
from passagent.evaluator.score import aggregate
from passagent.search.candidates import canonical_key
from passagent.store import blobs, evaluations
from passagent.store.database import Store
from passagent.system.redaction import redact
from passagent.tasks import Task

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


class NotFit(PassagentError):
    """An example must not go out, or an export is not what was written; the message says what to do."""


def find_secret(text: str) -> str | None:
    """Name the kind of secret that `text` seems to hold; None: nothing."""
    kind_of_text = next((kind for kind, shape in _SHAPES.items() if re.search(shape, text)), None)
    return kind_of_text or ("a secret" if redact(text) != text else None)


def check_secrets(name: str, data: Any) -> None:
    """Raise NotFit if `data`, plain data of the example `name`, holds what looks like a secret."""
    if kind := find_secret(json.dumps(data, ensure_ascii=False)):
        raise NotFit(f"{name}: holds what looks like {kind}; withdraw it, and {_without(name)}")


def check_node(store: Store, name: str, revision: Revision) -> dict[str, str]:
    """Return the files of the node behind `revision`. Raises NotFit unless all is as it was measured."""

    def tampered(what: str) -> NotFit:
        return NotFit(
            f"{name}: node {revision.node} is not as it was measured ({what}); restore the database from a "
            f"backup, or {_without(name)}"
        )

    texts_by_name = blobs.get(store, revision.files)
    if revision.evaluation_id is None:
        if revision.status == "ok":
            raise tampered("it counts as correct without an evaluation")
        return texts_by_name
    stored = store.row(
        "SELECT candidate_key AS key, status, as_score FROM evaluations WHERE id = :evaluation",
        {"evaluation": revision.evaluation_id},
    )
    if stored is None:
        raise tampered("its evaluation is gone")
    key = stored["key"]
    if key != revision.files and (
        # the same program may be there with other comments and formatting
        canonical_key(texts_by_name, revision.files) != canonical_key(blobs.get(store, key), key)
    ):
        raise tampered("its evaluation is another candidate's")
    if stored["status"] != revision.status or revision.as_score not in (None, stored["as_score"]):
        raise tampered("its status or AS is not that of its evaluation")
    figures = evaluations.get_evaluation(store, revision.evaluation_id, samples=False)
    total = None if figures["es"] is None else aggregate({int(t): es for t, es in figures["es"].items()})
    if not _is_equal(total, stored["as_score"]) or figures["status"] != stored["status"]:
        raise tampered("the AS of its evaluation does not follow from its ES(t)")
    return texts_by_name


def _is_equal(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=_EQUAL)


def _without(name: str) -> str:
    return f"leave it out with --keep \"id != '{name}'\""


class EvaluationTasks:
    """The tasks that a training example must not share anything with."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._shares: dict[str | tuple[str, ...], str] = {}
        """The thing in common with a task, by the task's key, its operators or a subgraph's key."""
        for task in tasks:
            self._shares[task.key] = f"is the task {task.name}"
            self._shares[tuple(task.operators)] = f"has the operator sequence of {task.name}"
            for graph in task.subgraphs:
                self._shares[graph.source_key] = f"has the subgraph {task.name}/{graph.name}"

    def check(self, examples: Iterable[dict[str, Any]]) -> None:
        """Raise NotFit, naming the tasks, if an example shares something with one of these tasks.

        An example is its `task`, `task_key`, `operators` and `subgraphs`.
        """
        overlaps: dict[str, None] = {}
        for example in examples:
            operators = example["operators"]
            words = operators.split() if isinstance(operators, str) else operators
            keys = [example["task_key"], tuple(words), *example["subgraphs"]]
            if share := next((self._shares[key] for key in keys if key in self._shares), None):
                overlaps[f"{example['task']} {share}"] = None
        if overlaps:
            more = f" and {len(overlaps) - _SHOWN} more" if len(overlaps) > _SHOWN else ""
            raise NotFit(
                f"training and evaluation tasks overlap: {'; '.join(list(overlaps)[:_SHOWN])}{more}; leave "
                "them out, such as with --keep \"task != '...'\""
            )


def check_directory(directory: Path, evaluation: EvaluationTasks, stores: Sequence[Store]) -> int:
    """Return the number of rows, all of which are in order.

    Checked are each row's sha256, that no file has other rows, secrets, overlap with evaluation tasks and,
    where there are `stores`, that every candidate is there with the files and the score that provenance says.
    Raises UsageError if `directory` is no export, and NotFit for what is wrong.
    """
    manifest = read_manifest(directory)
    episodes = {episode.columns["id"]: episode for episode in read_episodes(stores)}
    rows = list(provenance(directory))
    for row, text in texts(directory, rows):
        place = f"{directory / row['file']}:{row['line']}"
        if text is None or hashlib.sha256(text.encode()).hexdigest() != row["sha256"]:
            raise NotFit(f"{place}: not the row that was written; export again")
        if kind := find_secret(json.dumps(json.loads(text), ensure_ascii=False)):
            raise NotFit(f"{place}: holds what looks like {kind}; withdraw it, and export again without")
        evaluation.check([row])
        if stores:
            _check_row(row, episodes, place)
    written: int = manifest["rows"]
    lines = sum(path.read_bytes().count(b"\n") for name in manifest["files"] for path in directory.glob(name))
    if not len(rows) == lines == written:
        raise NotFit(f"{directory}: has {lines} rows, {written} were written; export again")
    return written


def _check_row(row: dict[str, Any], episodes: dict[str, JudgedEpisode], place: str) -> None:
    """Compare the candidates of a row with the database. Raises NotFit."""
    name = f"{row['run']}/{row['episode']}"
    if name not in episodes:
        raise NotFit(f"{place}: the database has no finished episode {name}")
    revisions = {revision.node: revision for revision in episodes[name].revisions}
    for node in row["nodes"]:
        revision = revisions.get(node["node"])
        if revision is None or any(getattr(revision, k) != node[k] for k in ("files", "status", "as_score")):
            raise NotFit(f"{place}: node {node['node']} is another one in the database")
        check_node(episodes[name].store, row["id"], revision)
