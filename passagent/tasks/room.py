"""Memory that a task's inputs need, by arithmetic on its metadata: nothing is allocated."""

from __future__ import annotations

import re

from passagent.errors import MachineFault, TaskError
from passagent.system.machine_memory import available_bytes, memory_bytes
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
    check_room_on("this machine", memory_bytes(), subgraph, copies)
    needs = _needs(subgraph, copies)
    raise MachineFault(f"{needs}, {_gib(free)} are free; end other programs or use a smaller task")


def check_room_on(what: str, there: int, subgraph: Subgraph, copies: int) -> None:
    """Raise TaskError if so many copies of a subgraph's inputs are more than all memory of `what`."""
    if copies * input_bytes(subgraph) > there:
        has = f"{what} has {_gib(there)}; use a smaller task or a larger machine"
        raise TaskError(f"{_needs(subgraph, copies)}, {has}")


def _needs(subgraph: Subgraph, copies: int) -> str:
    needed = _gib(copies * input_bytes(subgraph))
    return f"{subgraph.path}: needs {needed} of memory for {copies} copies of its inputs"


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
