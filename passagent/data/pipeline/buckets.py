"""Buckets of subgraphs, and groups of a bucket or of several: each group is a task (PassNet 3.4, App. B).

The rules are those of GraphNet's `sqlite/` scripts, whose numbers they keep. Rules 1 and 2 choose first;
4 and 3 choose from what those left.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

STRIDE = 16
"""Within a bucket every so many subgraphs one is a task of its own."""
DTYPES = 3
"""Of a group of rule 4, and the size of the samples of rule 3."""
WIDTH = 5
"""Rule 3 takes the first DTYPES of each DTYPES * WIDTH subgraphs."""


class Bucketed(NamedTuple):
    """A subgraph as the rules see it."""

    uid: str
    kind: str
    operators: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Of each input, dimensions in buckets."""
    dtypes: tuple[str, ...]


class Group(NamedTuple):
    """Subgraphs of one operator sequence."""

    rule: int
    kind: str
    operators: tuple[str, ...]
    uids: tuple[str, ...]


def dimension_bucket(size: int) -> int:
    """floor(log2(size) / 4); -1 for an empty dimension."""
    return -1 if size <= 0 else int(math.log2(size)) // 4


def bucketed(
    uid: str, kind: str, operators: Sequence[str], inputs: Iterable[tuple[Sequence[int], str]]
) -> Bucketed:
    """A subgraph with its bucket; `inputs`: shape and dtype of each."""
    inputs = list(inputs)
    shapes = tuple(tuple(map(dimension_bucket, shape)) for shape, _ in inputs)
    return Bucketed(uid, kind, tuple(operators), shapes, tuple(dtype for _, dtype in inputs))


def groups(subgraphs: Sequence[Bucketed]) -> list[Group]:
    """The groups of subgraphs, which are in the order of their making."""
    buckets: dict[Hashable, list[Bucketed]] = defaultdict(list)
    for one in subgraphs:
        buckets[one.kind, one.operators, one.shapes].append(one)
    ordered = [buckets[key] for key in sorted(buckets, key=repr)]
    heads = [min(bucket, key=lambda one: one.uid) for bucket in ordered]
    found = [
        Group(1, one.kind, one.operators, (one.uid,))
        for bucket, head in zip(ordered, heads, strict=True)
        for one in bucket[::STRIDE]
        if one.uid != head.uid
    ]
    found += [
        Group(2, own[0].kind, own[0].operators, tuple(one.uid for one in own)) for own in _sequences(heads)
    ]
    chosen = {uid for group in found for uid in group.uids}
    left = sorted(
        (one for one in subgraphs if one.uid not in chosen),
        key=lambda one: (one.kind, one.operators, one.shapes, one.dtypes, one.uid),
    )
    sparse = []
    for own in _sequences(left):
        covered = _each_dtype(own)
        if covered:
            found.append(Group(4, own[0].kind, own[0].operators, tuple(covered)))
        rest = sorted(one.uid for one in own if one.uid not in set(covered))
        picked = [uid for i, uid in enumerate(rest) if i % (DTYPES * WIDTH) < DTYPES]
        if picked:
            sparse.append(Group(3, own[0].kind, own[0].operators, tuple(picked)))
    return found + sparse


def _sequences(subgraphs: Iterable[Bucketed]) -> list[list[Bucketed]]:
    """The subgraphs by kind and operator sequence."""
    found: dict[Hashable, list[Bucketed]] = defaultdict(list)
    for one in subgraphs:
        found[one.kind, one.operators].append(one)
    return list(found.values())


def _each_dtype(subgraphs: Iterable[Bucketed]) -> list[str]:
    """Of each bucket of shapes the first subgraph of each of up to DTYPES dtypes."""
    seen: dict[Hashable, set[tuple[str, ...]]] = defaultdict(set)
    picked = []
    for one in subgraphs:
        dtypes = seen[one.shapes]
        if one.dtypes not in dtypes and len(dtypes) < DTYPES:
            dtypes.add(one.dtypes)
            picked.append(one.uid)
    return picked
