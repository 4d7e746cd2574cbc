"""A data set out of databases: chosen, checked, written, with a card; and checked again on the disk later.

A node must be what was measured: its files have the key that they are stored under, its score is that of its
evaluation, which is the aggregate of its ES(t). Nothing that looks like a secret goes out, and nothing that
shares something with the tasks that a student will be judged on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from passagent.data.export.example import FILES, Example, Row, steps, whole
from passagent.data.export.formats import FORMATS
from passagent.data.export.selection import (
    Chosen,
    JudgedEpisode,
    Revision,
    read_episodes,
    reading_stores,
    select,
)
from passagent.data.export.writing import Summary, Writer, read_manifest, read_rows
from passagent.errors import PassagentError, UsageError
from passagent.evaluator.score import aggregate
from passagent.search.candidates import canonical_key
from passagent.store import evaluations
from passagent.store.database import Store
from passagent.store.episodes import get_episode
from passagent.store.outputs import whole_directory
from passagent.store.redaction import kind_of_secret
from passagent.store.runs import get_run
from passagent.store.trajectories import Trajectory, trajectory
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks

_FAILURES = "failures_"
"""The beginning of the names of files of negative examples."""


def make(runs_dirs: Sequence[str], options: Mapping[str, Any], command: str) -> Summary:
    """Write the data set that the complete options of `passagent export` ask for.

    `command`: for its card. Raises UsageError, and PassagentError for what must not go out.
    """
    form = FORMATS[options["format"]]
    with reading_stores(runs_dirs) as stores:
        episodes = read_episodes(stores)
        chosen = select(
            episodes, **{name: options[name] for name in ("keep", "by", "best_of", "per_sequence")}
        )
        wrong = []
        if options["failures"]:
            wrong = [Chosen(episode) for episode in episodes if episode.columns["as_score"] is None]
        if wrong:  # each is in one of the two
            chosen = [choice for choice in chosen if choice.columns["as_score"] is not None]
        if not chosen:
            raise UsageError(
                f"{', '.join(runs_dirs)}: finished episodes: {len(episodes)}, "
                "none of them is chosen; see what there is with passagent runs, and loosen --keep"
            )
        every = [choice.columns | {"subgraphs": choice.episode.subgraphs} for choice in [*chosen, *wrong]]
        check_overlap(every, options["against"] or ())
        with whole_directory(Path(options["out"])) as directory:
            writer = Writer(directory, form, options)
            for example in build(chosen):
                writer.add(example)
            for example in build(wrong):
                writer.add(example, _FAILURES)
            return writer.finish(command)


def build(chosen: Iterable[Chosen]) -> Iterator[Example]:
    """Read the chosen examples, one at a time, and check each. Raises PassagentError.

    An episode is read as it lies in the database: a secret in it is found by the check and not taken out.
    """
    last: tuple[JudgedEpisode, Trajectory] | None = None
    for choice in chosen:
        episode, name = choice.episode, choice.columns["id"]
        if last is None or last[0] is not episode:
            store = episode.store
            run, stored = get_run(store, episode.columns["run"]), get_episode(store, episode.episode_id)
            last = episode, trajectory(store, run, stored, clean=False)
        read = last[1]
        files = {r.files: check_node(episode.store, name, r) for r in choice.revisions}
        check_secrets(name, [read.model_dump(), files], without(name))
        columns = choice.columns | {
            "operators": choice.columns["operators"].split(),
            "subgraphs": list(episode.subgraphs),
            FILES: files,
        }
        if choice.revision is None:
            example = whole(read)
            columns["credit"] = [
                {"node": revision.node, **_credit(revision)} for revision in choice.revisions
            ]
        else:
            example = steps(read)[choice.revision.node]
            columns |= _credit(choice.revision)
        yield replace(example, columns=columns)


def _credit(revision: Revision) -> Row:
    return {"reward": revision.reward, "return": revision.returns, "advantage": revision.advantage}


_EQUAL = 1e-9
"""Relative: how far a score may be from the aggregate of its parts."""
_SHOWN = 3
"""Overlaps that are named; the others are counted."""


def check_secrets(name: str, data: Any, advice: str) -> None:
    """Raise PassagentError if `data`, plain data of what `name` names, holds what looks like a secret."""
    if kind := kind_of_secret(json.dumps(data, ensure_ascii=False)):
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
