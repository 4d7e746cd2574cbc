"""Captured graphs, kept by content: Dynamo, whose import takes seconds, captures a subgraph once.

What it captures depends on the subgraph's text, its inputs' metadata, the device, and the versions of Python,
torch and passagent. Graphs lie in the user's own cache, where no candidate can write.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent.sandbox import cache
from passagent.sandbox.environment import evaluator_version
from passagent.tasks.graphio import dump_graph
from passagent.tasks.inputs import make_inputs
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph


@dataclass(frozen=True)
class KeptGraph:
    """A captured graph (tasks/graphio.py), and for each of its placeholders the position of its input."""

    nodes: list[dict[str, Any]]
    order: list[int]


def without_dynamo(subgraph: Subgraph, device: str) -> KeptGraph | None:
    """The graph, if it is kept."""
    return cache.kept(_path(subgraph, device), lambda data: KeptGraph(data["nodes"], data["order"]))


def graph_of(subgraph: Subgraph, device: str) -> KeptGraph:
    """The graph on `device` (`cpu`, `cuda:0`), kept or captured now. Raises TaskError if there is none."""
    graph = without_dynamo(subgraph, device)
    if graph is None:
        from passagent.tasks.capture import capture  # Dynamo takes seconds to import

        captured = capture(load_module(subgraph, device), make_inputs(subgraph, device, 0))
        graph = KeptGraph(dump_graph(captured.graph_module.graph), captured.order)
        keep(subgraph, device, graph)
    return graph


def keep(subgraph: Subgraph, device: str, captured: KeptGraph) -> None:
    """Keep the graph, if the disk can take it."""
    cache.keep(_path(subgraph, device), vars(captured))


def _path(subgraph: Subgraph, device: str) -> Path:
    versions = [evaluator_version(), str(torch.__version__), platform.python_version()]
    return cache.kept_file("graphs", [*versions, device, subgraph.source, repr(subgraph.inputs)])
