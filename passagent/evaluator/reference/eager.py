"""Describe eager on each subgraph of a task: its outputs, operators and time, for an author to plan with.

Measured when an author first sees the task, and kept for a day in the user's own cache. No speedup is
computed from it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from passagent.config import EvaluatorConfig
from passagent.sandbox import cache
from passagent.sandbox.environment import device_name, evaluator_version, worker_threads
from passagent.tasks.reader import Task

KEPT_S = 24 * 3600.0


@dataclass(frozen=True)
class Output:
    """A tensor that eager returns."""

    shape: tuple[int, ...]
    dtype: str
    """Without `torch.`."""
    strides: tuple[int, ...]
    """In elements."""


@dataclass(frozen=True)
class EagerGraph:
    """Eager on one subgraph."""

    name: str
    outputs: tuple[Output, ...]
    operators: tuple[str, ...]
    """Operators of the captured graph, in order: a pass may match them."""
    eager_us: float
    """Median of a few calls, end to end, us."""


_GRAPHS = TypeAdapter(tuple[EagerGraph, ...])


def read_graphs(data: list[dict[str, Any]]) -> tuple[EagerGraph, ...]:
    """Read graphs from their `asdict`. Raises ValueError for anything else."""
    return _GRAPHS.validate_python(data)


def kept(task: Task, config: EvaluatorConfig, device: str) -> tuple[EagerGraph, ...]:
    """The measurements of the task on this machine's `device` within a day; () without any."""
    return cache.kept(_path(task, config, device), read_graphs, KEPT_S) or ()


def keep(task: Task, config: EvaluatorConfig, device: str, graphs: tuple[EagerGraph, ...]) -> None:
    """Keep it, if the disk can take it."""
    cache.keep(_path(task, config, device), [asdict(graph) for graph in graphs])


def _path(task: Task, config: EvaluatorConfig, device: str) -> Path:
    how = [config.dispatch, worker_threads(config.threads), evaluator_version()]
    return cache.kept_file("eager", [task.key, device_name(device), *how])
