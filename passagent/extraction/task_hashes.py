"""Structural hashes of tasks on disk, and which of their subgraphs are the same."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from passagent.errors import TaskError
from passagent.evaluator.captures import graph_of
from passagent.extraction.structural_hash import Level, StructuralHash, structural_hash
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Subgraph, Task, load_task


class HashedSubgraph(NamedTuple):
    """A subgraph of a task and its hash."""

    task: Path
    subgraph: Subgraph
    hash: StructuralHash


def hash_subgraph(subgraph: Subgraph) -> StructuralHash:
    """The hash of the graph that passes are matched against. Raises TaskError where it is not one graph."""
    captured = graph_of(subgraph, "cpu")
    inputs = [subgraph.inputs[position] for position in captured.order]
    return structural_hash(load_graph(captured.nodes).graph, inputs)


def hash_tasks(paths: Iterable[Path]) -> Iterator[HashedSubgraph]:
    """Of each subgraph of the tasks, in order. Raises TaskError, UsageError."""
    for path in paths:
        for subgraph in load_task(path).subgraphs:
            yield HashedSubgraph(path, subgraph, hash_subgraph(subgraph))


def hashes_of(task: Task) -> list[tuple[str, str] | None]:
    """Structure and instance of each subgraph, in order; None for one that is not one graph."""
    found: list[tuple[str, str] | None] = []
    for subgraph in task.subgraphs:
        try:
            hashes = hash_subgraph(subgraph)
            found.append((hashes.structure, hashes.instance))
        except TaskError:
            found.append(None)
    return found


def same(hashed: Iterable[HashedSubgraph], level: Level) -> list[list[HashedSubgraph]]:
    """The subgraphs by their hash; each group in order, the group of the first one first."""
    groups: dict[str, list[HashedSubgraph]] = defaultdict(list)
    for one in hashed:
        groups[getattr(one.hash, level)].append(one)
    return list(groups.values())


if __name__ == "__main__":
    print(json.dumps(hashes_of(load_task(sys.argv[1]))))
