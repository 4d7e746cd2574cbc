"""Costs that follow from a graph: FLOPs, and bytes of inputs that it does not read.

FLOPs are by torch's own counter: of matrix products, convolutions and attention. Bytes are unread of an input
that the graph only takes slices of.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from passagent.tasks.graphio import load_graph, operator_name
from passagent.tasks.reader import Subgraph

_COUNTED = re.compile(r"mm|matmul|linear|conv|einsum|attention|dot|mv|inner|bilinear|chain|lstm|gru|rnn")


def count_flops(nodes: list[dict[str, Any]], order: list[int], subgraph: Subgraph) -> int | None:
    """FLOPs of a call of the captured graph, 0 where nothing in it counts; None where torch cannot tell.

    `order`: for each placeholder the position of its input. Nothing is computed: tensors have no values.
    """
    names = [operator_name(node["target"]) for node in nodes if node["op"].startswith("call")]
    if not any(_COUNTED.search(name) for name in names):
        return 0
    from torch._subclasses.fake_tensor import FakeTensorMode  # seconds, which few tasks take
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        inputs = [
            meta.data
            if meta.is_python_scalar
            else torch.empty(meta.shape, dtype=getattr(torch, meta.dtype.removeprefix("torch.")))
            for meta in (subgraph.inputs[position] for position in order)
        ]
        try:
            load_graph(nodes)(*inputs)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):  # sizes that depend on values
            return None
    return int(counter.get_total_flops())


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
