"""The bytes that a subgraph must move at least once: its inputs and its outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.tasks.meta import TensorMeta
from passagent.tasks.module import load_module
from passagent.tasks.reader import Subgraph, Task


def traffic(task: Task) -> dict[str, int]:
    """Bytes by subgraph name; see subgraph_traffic."""
    return {subgraph.name: subgraph_traffic(subgraph) for subgraph in task.subgraphs}


def subgraph_traffic(subgraph: Subgraph) -> int:
    """Bytes of all inputs plus bytes of all outputs, outputs that are views of inputs counted once.

    Shapes are propagated on the meta device, nothing is computed. Where shapes depend on values only the
    inputs count. An embedding table counts whole, so the figure can be too high there, never too low.
    """
    inputs = [_placeholder(meta) for meta in subgraph.inputs]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    known = {value.untyped_storage()._cdata for value in tensors}
    total = sum(value.nbytes for value in tensors)
    try:
        with torch.no_grad():
            outputs = pytree.tree_leaves(load_module(subgraph, "meta")(*inputs))
    except (RuntimeError, NotImplementedError):  # a size that depends on a value, or no meta function
        return total
    for value in outputs:
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in known:
            known.add(value.untyped_storage()._cdata)
            total += value.nbytes
    return total


def _placeholder(meta: TensorMeta) -> Any:
    if meta.is_python_scalar:
        return meta.data
    return torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device="meta")
