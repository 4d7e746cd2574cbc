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
    total = 0
    for position, node in zip(order, load_graph(nodes).graph.find_nodes(op="placeholder"), strict=True):
        meta = subgraph.inputs[position]
        if not meta.is_python_scalar:
            dtype = getattr(torch, meta.dtype.removeprefix("torch."))
            value = torch.empty(meta.shape, dtype=dtype, device="meta")
            total += value.nbytes - _read(node, value)
    return total


def _read(node: fx.Node, value: Any) -> int:
    """Bytes of a node's value that its users read, those of a view by the view's own users."""
    whole, read = sum(tensor.nbytes for tensor in tree_leaves(value)), 0
    for user in node.users:
        if user.op == "output":
            continue
        args, kwargs = fx.map_arg((user.args, user.kwargs), lambda one: value if one is node else one)
        try:
            target: Any = user.target
            made = (
                getattr(args[0], target)(*args[1:], **kwargs)
                if user.op == "call_method"
                else target(*args, **kwargs)
            )
            is_view = made is not value and _storages(made) <= _storages(value)
        except Exception:  # it takes other values, too: no view
            return whole
        if not is_view:
            return whole
        read += _read(user, made)
    return min(whole, read)


def _storages(value: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tree_leaves(value)}
