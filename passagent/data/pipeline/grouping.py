"""Subgraphs into groups, each of them a task, and tasks into training and evaluation (PassNet 3.4, App. B).

The rules of the groups are those of GraphNet's `sqlite/` scripts, whose numbers they keep. Rules 1 and 2
choose first; 4 and 3 choose from the rest.

Training and evaluation tasks share nothing. A Markov chain over the operators of all sequences says how rare
each step is. Greedily the sequence with the most steps that are not covered yet is taken, rare ones first.
(The paper writes of a hidden Markov model; GraphNet's code has a plain chain.)

What was written is checked with the same keys: whether it is in order, and what two sets of tasks share.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from passagent.errors import PassagentError, UsageError
from passagent.tasks import load_task
from passagent.tasks.tasklist import find_tasks

STRIDE = 16
"""Within a bucket every so many subgraphs one is a task of its own."""
DTYPES = 3
"""The dtypes of a group of rule 4, and the size of the samples of rule 3."""
WIDTH = 5
"""Rule 3 takes the first DTYPES of each DTYPES * WIDTH subgraphs."""
ALPHA = 1e-3
"""Added to each count of a step (Laplace)."""
RARITY = 1.0
"""The weight of rareness."""


class Bucketed(NamedTuple):
    """A subgraph as the rules see it."""

    uid: int
    """Its place in the order of their making."""
    kind: str
    operators: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """The dimensions of each input, in buckets."""
    dtypes: tuple[str, ...]


class Group(NamedTuple):
    """Subgraphs of one operator sequence, as the rule chose them."""

    rule: int
    members: list[Bucketed]


def dimension_bucket(size: int) -> int:
    """Return floor(log2(size) / 4); -1 for an empty dimension."""
    return -1 if size <= 0 else int(math.log2(size)) // 4


def groups(subgraphs: Sequence[Bucketed]) -> list[Group]:
    """Group subgraphs, which are in the order of their making."""
    buckets: dict[Hashable, list[Bucketed]] = defaultdict(list)
    for subgraph in subgraphs:
        buckets[subgraph.kind, subgraph.operators, subgraph.shapes].append(subgraph)
    ordered = [buckets[key] for key in sorted(buckets, key=repr)]
    heads = [min(bucket, key=lambda subgraph: subgraph.uid) for bucket in ordered]
    chosen = [
        Group(1, [subgraph])
        for bucket, head in zip(ordered, heads, strict=True)
        for subgraph in bucket[::STRIDE]
        if subgraph.uid != head.uid
    ]
    chosen += [Group(2, alike) for alike in _sequences(heads)]
    taken = {subgraph.uid for group in chosen for subgraph in group.members}
    rest = _sequences(sorted((s for s in subgraphs if s.uid not in taken), key=lambda s: (*s[1:], s.uid)))
    covered = [_each_dtype(alike) for alike in rest]
    chosen += [Group(4, picked) for picked in covered]
    for alike, picked in zip(rest, covered, strict=True):
        others = sorted(set(alike).difference(picked), key=lambda subgraph: subgraph.uid)
        sampled = [subgraph for i, subgraph in enumerate(others) if i % (DTYPES * WIDTH) < DTYPES]
        chosen += [Group(3, sampled)] if sampled else []
    return chosen


def _sequences(subgraphs: Iterable[Bucketed]) -> list[list[Bucketed]]:
    """Sort the subgraphs by kind and operator sequence."""
    by_sequence: dict[Hashable, list[Bucketed]] = defaultdict(list)
    for subgraph in subgraphs:
        by_sequence[subgraph.kind, subgraph.operators].append(subgraph)
    return list(by_sequence.values())


def _each_dtype(subgraphs: Iterable[Bucketed]) -> list[Bucketed]:
    """Pick, of each bucket of shapes, the first subgraph of each of up to DTYPES dtypes."""
    dtypes_of: dict[Hashable, set[tuple[str, ...]]] = defaultdict(set)
    picked = []
    for subgraph in subgraphs:
        dtypes = dtypes_of[subgraph.shapes]
        if subgraph.dtypes not in dtypes and len(dtypes) < DTYPES:
            dtypes.add(subgraph.dtypes)
            picked.append(subgraph)
    return picked


class Member(NamedTuple):
    """A task as the partition sees it."""

    name: str
    kind: str
    operators: tuple[str, ...]
    hashes: frozenset[str]
    """Structure and instance hashes of its subgraphs."""
    size: int


class Partition(NamedTuple):
    """Names of tasks."""

    train: list[str]
    evaluation: list[str]
    left_out: list[str]
    """The tasks of neither side: they share a sequence or a hash with an evaluation task."""


def partition(tasks: Sequence[Member], evaluation: Mapping[str, int]) -> Partition:
    """Divide the tasks; `evaluation`: of each kind so many sequences, at most a fifth of those there are."""
    chosen: list[Member] = []
    for kind, count in evaluation.items():
        of_kind = [task for task in tasks if task.kind == kind]
        sequences = sorted({task.operators for task in of_kind})
        for sequence in select(sequences, min(count, len(sequences) // 5)):
            alike = [task for task in of_kind if task.operators == sequence]
            chosen.append(min(alike, key=lambda task: (-task.size, task.name)))
    names = {task.name for task in chosen}
    taken = {key for task in chosen for key in keys_of(task)}
    train, left_out = list[str](), list[str]()
    for task in tasks:
        if task.name not in names:
            (left_out if taken & keys_of(task) else train).append(task.name)
    return Partition(train, [task.name for task in chosen], left_out)


def keys_of(task: Member) -> set[Hashable]:
    """Return all that two tasks on different sides must not share."""
    return {task.operators, *task.hashes}


def select(sequences: Sequence[tuple[str, ...]], count: int) -> list[tuple[str, ...]]:
    """Choose the `count` sequences that cover most, the best first."""
    if count <= 0:
        return []
    if count >= len(sequences):
        return list(sequences)
    steps = Counter(step for sequence in sequences for step in pairwise(sequence))
    begun = Counter[str]()
    for (first, _), times in steps.items():
        begun[first] += times
    words = len({operator for sequence in sequences for operator in sequence})
    rarity = []  # the mean of -log P(step)
    for sequence in sequences:
        surprise = [
            -math.log((steps[step] + ALPHA) / (begun[step[0]] + ALPHA * words)) for step in pairwise(sequence)
        ]
        rarity.append(sum(surprise) / len(surprise) if surprise else 0.0)
    low, high = min(rarity), max(rarity)
    is_flat = math.isclose(low, high)
    bonus = [0.0 if is_flat else RARITY * (value - low) / (high - low) for value in rarity]
    unique = [frozenset(pairwise(sequence)) for sequence in sequences]
    covered: set[tuple[str, str]] = set()
    waiting, chosen = dict.fromkeys(range(len(sequences))), list[tuple[str, ...]]()
    while len(chosen) < count:
        key = {i: len(unique[i] - covered) for i in waiting}
        best = max(waiting, key=lambda i: (key[i] * (1 + bonus[i]), key[i], bonus[i], len(sequences[i])))
        chosen.append(sequences[best])
        covered |= unique[best]
        del waiting[best]
    return chosen


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
    """List the tasks of both that have a subgraph, or else an operator sequence, in common, a line each."""
    names = {key: task.name for task in other for key in keys_of(task)}
    overlaps = []
    for task in tasks:
        common = sorted(keys_of(task) & names.keys(), key=lambda key: (isinstance(key, tuple), key))
        for key in common[:1]:
            what = "the operator sequence" if isinstance(key, tuple) else "a subgraph"
            overlaps.append(f"{task.name} has {what} of {names[key]}")
    return overlaps


def leaks(words: list[str], against: list[str]) -> list[str]:
    """Name the tasks of `words` that share something with one of `against`. Raises UsageError, TaskError."""
    return shared(*([member_of(path) for path in find_tasks(names)] for names in (words, against)))
