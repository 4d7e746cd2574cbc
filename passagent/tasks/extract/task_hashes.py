"""Structural hashes of tasks on disk."""

from __future__ import annotations

import json
import sys

from passagent.errors import TaskError
from passagent.evaluator.captures import graph_of
from passagent.tasks.extract.structural_hash import StructuralHash, structural_hash
from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Subgraph, Task, load_task


def hash_subgraph(subgraph: Subgraph) -> StructuralHash:
    """The hash of the graph that passes are matched against. Raises TaskError where it is not one graph."""
    captured = graph_of(subgraph, "cpu")
    inputs = [subgraph.inputs[position] for position in captured.order]
    return structural_hash(load_graph(captured.nodes).graph, inputs)


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


if __name__ == "__main__":
    print(json.dumps(hashes_of(load_task(sys.argv[1]))))
