"""A data set on disk: its files, whether it is in order, and overlaps of two."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from passagent.data.pipeline.grouping import Member, keys_of
from passagent.errors import PassagentError, UsageError
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks

TASKS, LISTS, RECORD = "tasks", "lists", "dataset.json"
EVALUATION = "evaluation_"
"""The beginning of the names of lists of evaluation tasks."""


def read_record(out: Path) -> dict[str, Any]:
    """Read the record of a finished data set. Raises UsageError."""
    path = out / RECORD
    if not path.is_file():
        raise UsageError(f"{out}: is no data set, or not finished; the same `tasks build` goes on")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def member_of(path: Path) -> Member:
    """Read a task on disk, and hash its subgraphs. Raises TaskError."""
    from passagent.tasks.extract.structural_hash import hash_subgraph  # imports torch

    task = load_task(path)
    hashes = {text for subgraph in task.subgraphs for text in hash_subgraph(subgraph)}
    return Member(str(path), path.parent.name, task.operators, frozenset(hashes), len(task.subgraphs))


def check(out: Path) -> list[str]:
    """List the problems of a data set: tasks that are not as recorded, evaluation tasks in training."""
    record = read_record(out)
    problems = []
    sides: dict[bool, list[Member]] = {False: [], True: []}
    for name in record["tasks"]:
        lines = (out / LISTS / f"{name}.txt").read_text(encoding="utf-8").split()
        paths = [(out / LISTS / line).resolve() for line in lines]
        if len(paths) != (count := record["tasks"][name]):
            problems.append(f"{LISTS}/{name}.txt: lists {len(paths)} tasks, {RECORD} has {count}")
        for path in paths:
            try:
                member = member_of(path)
                recorded = {subgraph.graph_hash for subgraph in load_task(path).subgraphs}
            except PassagentError as error:
                problems.append(str(error))
                continue
            sides[name.startswith(EVALUATION)].append(member)
            if not recorded <= member.hashes:
                problems.append(f"{path}: a subgraph has not the hash that is recorded with it")
    return problems + shared(sides[False], sides[True])


def shared(tasks: Iterable[Member], other: Iterable[Member]) -> list[str]:
    """List the tasks of both that have an operator sequence or a subgraph in common, a line each."""
    names = {key: task.name for task in other for key in keys_of(task)}
    overlaps = []
    for task in tasks:
        key = next((key for key in keys_of(task) if key in names), None)
        if key is not None:
            what = "the operator sequence" if isinstance(key, tuple) else "a subgraph"
            overlaps.append(f"{task.name} has {what} of {names[key]}")
    return overlaps


def leaks(words: list[str], against: list[str]) -> list[str]:
    """Name the tasks of `words` that share something with one of `against`. Raises UsageError, TaskError."""
    return shared(*([member_of(path) for path in find_tasks(names)] for names in (words, against)))
