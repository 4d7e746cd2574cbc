"""Costs of a graph: FLOPs, bytes of inputs that it does not read, the time of refreshing those that it reads.

FLOPs are by torch's own counter: of matrix products, convolutions and attention. Bytes are unread of an input
that the graph only takes slices of.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from passagent.evaluator.reference.reference import Reference, run_request
from passagent.evaluator.runner.process import WorkerAnswer
from passagent.evaluator.runner.worker_messages import Run, RunReply
from passagent.tasks.graphio import load_graph, operator_name
from passagent.tasks.reader import Subgraph

_REFRESH_SHARE, _REFRESH_FLOOR_NS = 8.0, 200_000
"""Refreshing the inputs before every call may take so many times eager's own call, or this long, ns."""
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


def affordable_inputs(reference: Reference, ask: Callable[[Run], WorkerAnswer[RunReply]]) -> list[int]:
    """Find inputs that can be changed before every call: the largest are left out if it takes too long.

    `ask`: for calls of eager's.
    """
    windows = [reference.rotation.first()] * (1 if reference.is_slow else 3)
    often = sorted(
        (i for i, meta in enumerate(reference.subgraph.inputs) if not meta.is_python_scalar),
        key=lambda i: reference.subgraph.inputs[i].numel,
    )
    needed = [i for i in often if i in reference.mutated]

    def is_affordable() -> bool:
        answer = ask(run_request(reference, 0, windows, settle=None if reference.is_slow else windows[0]))
        calls_ns = sum(answer.reply.samples)
        reference.call_s = min(answer.reply.samples) / 1e9 / max(1, reference.repeats)
        spent_ns = (answer.clock_ns or 0) - calls_ns
        floor_ns = _REFRESH_FLOOR_NS * max(1, reference.repeats) * len(windows)
        return spent_ns <= max(_REFRESH_SHARE * calls_ns, floor_ns)

    while True:
        reference.often = often
        # the best counts: a machine disturbs some
        if len(often) <= max(1, len(needed)) or any(is_affordable() for _ in range(3)):
            return sorted(often)
        largest = next(i for i in reversed(often) if i not in needed)
        often = [i for i in often if i != largest]
