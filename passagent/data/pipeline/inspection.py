"""A data set looked at: is it in order, what does it hold, do two share something."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from passagent.data.pipeline.partition import Member, keys_of
from passagent.data.pipeline.task_directories import LISTS, RECORD, record_of
from passagent.errors import PassagentError
from passagent.tasks import load_task
from passagent.tasks.extract.structural_hash import hash_subgraph
from passagent.tasks.tasklist import find_tasks

EVALUATION = "evaluation_"


def member_of(path: Path) -> Member:
    """A task on disk: its subgraphs are read and hashed. Raises TaskError."""
    task = load_task(path)
    hashes = {text for one in task.subgraphs for text in hash_subgraph(one)}
    return Member(str(path), path.parent.name, task.operators, frozenset(hashes), len(task.subgraphs))


def check(out: Path) -> list[str]:
    """What is wrong with a data set: tasks that are not as recorded, and evaluation tasks in training."""
    record = json.loads(record_of(out).read_text(encoding="utf-8"))
    problems, members = [], dict[str, list[Member]]()
    for name, count in record["tasks"].items():
        lines = (out / LISTS / f"{name}.txt").read_text(encoding="utf-8").split()
        if len(lines) != count:
            problems.append(f"{LISTS}/{name}.txt: lists {len(lines)} tasks, {RECORD} has {count}")
        members[name] = []
        for path in (out / LISTS / line for line in lines):
            try:
                member = member_of(path.resolve())
                recorded = {one.graph_hash for one in load_task(path).subgraphs}
            except PassagentError as error:
                problems.append(str(error))
                continue
            members[name].append(member)
            if not recorded <= member.hashes:
                problems.append(f"{path.resolve()}: a subgraph has not the hash that is recorded with it")
    sides: dict[bool, list[Member]] = defaultdict(list)
    for name, own in members.items():
        sides[name.startswith(EVALUATION)] += own
    return problems + shared(sides[False], sides[True])


def shared(one: Iterable[Member], other: Iterable[Member]) -> list[str]:
    """Which tasks of both have an operator sequence or a subgraph in common, a line each."""
    names = {key: task.name for task in other for key in keys_of(task)}
    found = []
    for task in one:
        for key in keys_of(task):
            if key in names:
                what = "the operator sequence" if isinstance(key, tuple) else "a subgraph"
                found.append(f"{task.name} has {what} of {names[key]}")
                break
    return found


def leaks(words: list[str], against: list[str]) -> list[str]:
    """Name the tasks of `words` that share something with one of `against`. Raises UsageError, TaskError."""
    return shared(*([member_of(path) for path in find_tasks(names)] for names in (words, against)))


def stats(out: Path) -> dict[str, Any]:
    """The funnel, and of each list the tasks, subgraphs, operators and dtypes."""
    record = json.loads(record_of(out).read_text(encoding="utf-8"))
    lists = []
    for name in record["tasks"]:
        lines = (out / LISTS / f"{name}.txt").read_text(encoding="utf-8").split()
        tasks = [load_task(out / LISTS / line) for line in lines]
        graphs = [one for task in tasks for one in task.subgraphs]
        lists.append({
            "list": name,
            "tasks": len(tasks),
            "subgraphs": len(graphs),
            "operators": sorted(len(task.operators) for task in tasks),
            "dtypes": dict(Counter(one.dtype for one in graphs).most_common()),
        })  # fmt: skip
    return {"funnel": record["funnel"], "lists": lists}
