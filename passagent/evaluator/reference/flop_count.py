"""FLOPs of a subgraph, by torch's own counter: of matrix products, convolutions and attention."""

from __future__ import annotations

import re
from typing import Any

import torch

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
