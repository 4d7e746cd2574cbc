"""Graphs without Dynamo, whose import a process does not wait for: read from the text, or kept by content.

What Dynamo captures of a subgraph that cannot be read (tasks/straight.py) depends on its text, its inputs'
metadata, the device, and the versions of Python, torch and passagent. It is what a trusted worker answered,
in the user's own cache, where no candidate can write.
"""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from passagent.cache import cache_dir, write_whole
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
    """The graph, if its text is read or it is kept; a file that cannot be read is as good as none."""
    read = read_graph(subgraph, device)
    if read is not None:
        return KeptGraph(dump_graph(read.graph_module), read.order)
    try:
        found = json.loads(_path(subgraph, device).read_bytes())
        return KeptGraph(found["nodes"], found["order"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(subgraph: Subgraph, device: str, captured: KeptGraph) -> None:
    """Keep the graph, if the disk can take it."""
    with suppress(OSError):
        write_whole(_path(subgraph, device), json.dumps(vars(captured)))


def _path(subgraph: Subgraph, device: str) -> Path:
    versions = [evaluator_version(), str(torch.__version__), platform.python_version()]
    content = [*versions, device, subgraph.source, repr(subgraph.inputs)]
    return cache_dir() / "graphs" / f"{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]}.json"
