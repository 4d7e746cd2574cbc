"""Graphs without Dynamo, whose import a process does not wait for: read from the text, or kept by content.

What Dynamo captures of a subgraph that cannot be read (tasks/straight.py) depends on its text, its inputs'
metadata, the device, and the versions of Python, torch and passagent. It is what a trusted worker answered,
in the user's own cache, where no candidate can write.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent import cache
from passagent.confine.environment import evaluator_version
from passagent.tasks.graphio import dump_graph
from passagent.tasks.reader import Subgraph
from passagent.tasks.straight import read_graph


@dataclass(frozen=True)
class KeptGraph:
    """A captured graph (tasks/graphio.py), and for each of its placeholders the position of its input."""

    nodes: list[dict[str, Any]]
    order: list[int]


def without_dynamo(subgraph: Subgraph, device: str) -> KeptGraph | None:
    """The graph, if its text is read or it is kept."""
    read = read_graph(subgraph, device)
    if read is not None:
        return KeptGraph(dump_graph(read.graph_module), read.order)
    return cache.kept(_path(subgraph, device), lambda found: KeptGraph(found["nodes"], found["order"]))


def keep(subgraph: Subgraph, device: str, captured: KeptGraph) -> None:
    """Keep the graph, if the disk can take it."""
    cache.keep(_path(subgraph, device), vars(captured))


def _path(subgraph: Subgraph, device: str) -> Path:
    versions = [evaluator_version(), str(torch.__version__), platform.python_version()]
    return cache.kept_file("graphs", [*versions, device, subgraph.source, repr(subgraph.inputs)])
