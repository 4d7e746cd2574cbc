"""How much memory references take, and how many of them are kept."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from passagent.errors import InfrastructureError, PassagentError, TaskError
from passagent.evaluator.hardware import health
from passagent.sandbox.channel import Arena
from passagent.sandbox.environment import device_memory_bytes
from passagent.sandbox.machine_memory import available_bytes
from passagent.tasks.reader import Subgraph

KEPT_GRAPHS = 64
"""References that are kept for later calls and candidates, at most: each takes file descriptors."""
KEPT_BYTES = 2 << 30
_KEPT_SHARE = 4
"""So many bytes of references are kept, or of one task's this part of the memory of machine and device."""
SMALL = 1 << 26
"""Elements of a subgraph's inputs, and of its outputs, where it is computed in float64, and on the last set;
input sets of no more are drawn side by side."""


def is_small(subgraph: Subgraph) -> bool:
    """Tell whether a subgraph is small, by its inputs."""
    return sum(meta.numel for meta in subgraph.inputs) <= SMALL


def are_too_many(sizes: Collection[int], device: str) -> bool:
    """Tell whether references of these sizes, bytes, are more than a referee keeps, or one of its workers."""
    size = sum(sizes)
    most = max(KEPT_BYTES, device_memory_bytes(device) // _KEPT_SHARE)
    return len(sizes) > KEPT_GRAPHS or size > most


def room_of(values: list[Any]) -> int:
    """Bytes that a set of inputs needs."""
    return sum(Arena.room(value) for value in values if isinstance(value, list))


def too_large(subgraph: Subgraph, device: str) -> PassagentError:
    """The error where eager ran out of memory: the task's, unless other programs use the GPU, too."""
    if others := health.device_state(device).get("other_processes"):
        return InfrastructureError(f"{device}: {health.crowded(others)}; eager did not fit ({subgraph.path})")
    free = f"{available_bytes() / 2**30:.1f} GiB were free"
    return TaskError(f"{subgraph.path}: eager needs more memory than there is ({free}); use a smaller task")
