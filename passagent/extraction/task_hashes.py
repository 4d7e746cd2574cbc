"""Structural hashes of tasks on disk."""

from __future__ import annotations

import json
import sys

from passagent.errors import TaskError
from passagent.extraction.structural_hash import StructuralHash, structural_hash
from passagent.tasks.capture import capture
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph, Task, load_task
from passagent.tasks.straight import read_graph


def hash_subgraph(subgraph: Subgraph) -> StructuralHash:
    """The hash of the graph that passes are matched against. Raises TaskError where it is not one graph."""
    captured = read_graph(subgraph, "cpu")
    if captured is None:
        captured = capture(load_module(subgraph, "cpu"), make_inputs(subgraph, "cpu", 0))
    inputs = [subgraph.inputs[position] for position in captured.order]
    return structural_hash(captured.graph_module.graph, inputs)


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
