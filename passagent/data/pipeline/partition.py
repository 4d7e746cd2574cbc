"""Training and evaluation tasks that share nothing (PassNet 3.4): which sequences are for evaluation.

A Markov chain over the operators of all sequences says how rare each step is. Greedily the sequence with the
most steps that are not covered yet is taken, rare ones first. (The paper writes of a hidden Markov model;
GraphNet's code has a plain chain.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

ALPHA = 1e-3
"""Added to each count of a step (Laplace)."""
RARITY = 1.0
"""The weight of rareness."""


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
    """Of neither side: they share a sequence or a hash with an evaluation task."""


def partition(tasks: Sequence[Member], evaluation: Mapping[str, int]) -> Partition:
    """Divide the tasks; `evaluation`: of each kind so many sequences, at most a fifth of those there are."""
    chosen: list[Member] = []
    for kind, count in evaluation.items():
        own = [task for task in tasks if task.kind == kind]
        sequences = sorted({task.operators for task in own})
        for sequence in select(sequences, min(count, len(sequences) // 5)):
            chosen.append(max((task for task in own if task.operators == sequence), key=_by_size))
    names = {task.name for task in chosen}
    taken = {key for task in chosen for key in keys_of(task)}
    train, left_out = list[str](), list[str]()
    for task in tasks:
        if task.name not in names:
            (left_out if taken & keys_of(task) else train).append(task.name)
    return Partition(train, [task.name for task in chosen], left_out)


def keys_of(task: Member) -> set[Hashable]:
    """What two tasks on different sides must not share."""
    return {task.operators, *task.hashes}


def _by_size(task: Member) -> tuple[int, list[int]]:
    return task.size, [-ord(letter) for letter in task.name]


def select(sequences: Sequence[tuple[str, ...]], count: int) -> list[tuple[str, ...]]:
    """The `count` sequences that tell most, the best first."""
    if count <= 0:
        return []
    if count >= len(sequences):
        return list(sequences)
    steps = Counter(step for sequence in sequences for step in pairwise(sequence))
    begun = Counter[str]()
    for (first, _), times in steps.items():
        begun[first] += times
    words = len({operator for sequence in sequences for operator in sequence})
    rarity = [_rarity(sequence, steps, begun, words) for sequence in sequences]
    low, high = min(rarity), max(rarity)
    bonus = [RARITY * (one - low) / (high - low) if not math.isclose(low, high) else 0.0 for one in rarity]
    unique = [frozenset(pairwise(sequence)) for sequence in sequences]
    covered: set[tuple[str, str]] = set()
    left, found = dict.fromkeys(range(len(sequences))), list[tuple[str, ...]]()
    while len(found) < count:
        key = {i: len(unique[i] - covered) for i in left}
        best = max(left, key=lambda i: (key[i] * (1 + bonus[i]), key[i], bonus[i], len(sequences[i])))
        found.append(sequences[best])
        covered |= unique[best]
        del left[best]
    return found


def _rarity(
    sequence: tuple[str, ...], steps: Mapping[tuple[str, str], int], begun: Mapping[str, int], words: int
) -> float:
    """The mean of -log P(step)."""
    own = list(pairwise(sequence))
    surprise = [-math.log((steps[step] + ALPHA) / (begun[step[0]] + ALPHA * words)) for step in own]
    return sum(surprise) / len(surprise) if surprise else 0.0
