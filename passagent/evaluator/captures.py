"""Captured graphs, kept by content: a process that needs none of Dynamo does not wait for its import.

The graph that Dynamo captures of a subgraph depends on its text, the inputs' metadata, the device, and the
versions of Python, torch and passagent. It is what a trusted worker answered, in the user's own cache, where
no candidate can write.
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
from passagent.evaluator.environment import evaluator_version
from passagent.tasks.reader import Subgraph


@dataclass(frozen=True)
class KeptGraph:
    """A captured graph (tasks/graphio.py), and for each of its placeholders the position of its input."""

    nodes: list[dict[str, Any]]
    order: list[int]


def recall(subgraph: Subgraph, device: str) -> KeptGraph | None:
    """The graph, if it is kept; a file that cannot be read is as good as none."""
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
