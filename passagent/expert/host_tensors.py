"""Tensors that a graph makes on the CPU, beside a GPU: kernels cannot read them, nor make them for eager."""

from __future__ import annotations

import torch
from torch import fx

from passagent.expert.graph import example, op_name, operators

_MAKING = {"arange", "zeros", "ones", "full", "empty", "eye", "linspace", "tensor", "as_tensor"}


def on_host(graph: fx.Graph) -> set[fx.Node]:
    """What is made without a device, and what is computed of nothing else until it is moved to one."""
    found: set[fx.Node] = set()
    for node in operators(graph):
        moved = "device" in node.kwargs or any(isinstance(a, torch.device) for a in node.args)
        sources = [a for a in node.all_input_nodes if isinstance(example(a), torch.Tensor)]
        made = op_name(node) in _MAKING and not sources
        if not moved and (made or (sources and all(a in found for a in sources))):
            found.add(node)
    return found


def left_outside(graph: fx.Graph, inside: set[fx.Node]) -> dict[fx.Node, str]:
    """Which of `inside` no kernel takes: results on the CPU, and what reads such a tensor from outside."""
    host, gone = on_host(graph), dict[fx.Node, str]()
    changed = bool(host)
    while changed:
        changed = False
        for node in inside - set(gone):
            if node in host and any(u not in inside or u in gone for u in node.users):
                gone[node] = "makes a tensor on the CPU"
            elif any(a in host and (a not in inside or a in gone) for a in node.all_input_nodes):
                gone[node] = "reads a tensor on the CPU"
            changed = changed or node in gone
    return gone
