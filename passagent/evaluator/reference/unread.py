"""Bytes of a subgraph's inputs that its graph does not read: of an input that it only takes slices of."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from passagent.tasks.graphio import load_graph
from passagent.tasks.reader import Subgraph


def unread_bytes(nodes: list[dict[str, Any]], order: list[int], subgraph: Subgraph) -> int:
    """The bytes that no operator reads; `order`: for each placeholder the position of its input."""
    total, module = 0, load_graph(nodes)
    for position, node in zip(order, module.graph.find_nodes(op="placeholder"), strict=True):
        meta = subgraph.inputs[position]
        if not meta.is_python_scalar:
            dtype = getattr(torch, meta.dtype.removeprefix("torch."))
            value = torch.empty(meta.shape, dtype=dtype, device="meta")
            total += value.nbytes - _read(fx.Interpreter(module), node, value)
    return total


def _read(calls: fx.Interpreter, node: fx.Node, value: Any) -> int:
    """Bytes of a node's value that its users read, those of a view by the view's own users."""
    whole, read = sum(tensor.nbytes for tensor in tree_leaves(value)), 0
    for user in node.users:
        if user.op != "output":
            arguments = fx.map_arg((user.args, user.kwargs), lambda other: value if other is node else other)
            try:
                result = getattr(calls, user.op)(user.target, *arguments)
                if result is value or not _storages(result) <= _storages(value):
                    return whole
            except Exception:  # it takes other values, too: no view
                return whole
            read += _read(calls, user, result)
    return min(whole, read)


def _storages(value: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tree_leaves(value)}
