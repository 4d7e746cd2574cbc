"""Whether a task's inputs fit into memory, by arithmetic on its metadata: nothing is allocated."""

from __future__ import annotations

import re

from passagent.errors import MachineFault, TaskError
from passagent.machine_memory import available_bytes, memory_bytes
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph


def input_bytes(subgraph: Subgraph) -> int:
    """Bytes of a subgraph's inputs."""
    return sum(meta.numel * itemsize(meta) for meta in subgraph.inputs if not meta.is_python_scalar)


def itemsize(meta: TensorMeta) -> int:
    """Bytes of an element, by the dtype's name; without torch."""
    bits = re.search(r"\d+", meta.dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


def check_room(subgraph: Subgraph, copies: int, free_bytes: int | None = None) -> None:
    """Raise TaskError if so many copies of a subgraph's inputs are more than this machine's memory.

    Raises MachineFault if they are more than is free (`free_bytes`; default: now). Eager's outputs and what
    it computes on the way come on top, so that what passes here may still find no memory.
    """
    needed = copies * input_bytes(subgraph)
    free = available_bytes() if free_bytes is None else free_bytes
    if needed <= free:
        return
    there = memory_bytes()
    needs = f"{subgraph.path}: needs {_gib(needed)} of memory for {copies} copies of its inputs"
    if needed > there:
        raise TaskError(f"{needs}, this machine has {_gib(there)}; use a smaller task or a larger machine")
    raise MachineFault(f"{needs}, {_gib(free)} are free; end other programs or use a smaller task")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
