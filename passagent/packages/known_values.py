"""Values that a captured graph computes of no input: known when it is compiled, as a causal mask is."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from passagent.evaluator.matching.effects import Memory, is_pure
from passagent.packages.prepared import extract_module
from passagent.tasks.extract.structural_hash import closure

MOST_BYTES = 1 << 30
"""Limit on the memory of all tensors that are computed for one value, together."""


def known_values(graph: fx.Graph, bound: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors among what a match binds that hold the same in every call, with their values.

    They are computed on their device. What is drawn at random, written later, or comes out otherwise than the
    graph's example says is not known.
    """
    known = {}
    for name, node in bound.items():
        if isinstance(node, fx.Node) and _is_constant(graph, node):
            value = _computed(graph, node)
            example = node.meta["example_value"]
            if value is not None and (value.shape, value.dtype) == (example.shape, example.dtype):
                known[name] = value
    return known


def _is_constant(graph: fx.Graph, node: fx.Node) -> bool:
    """Tell whether the node is a tensor of moderate size that depends on pure operators alone."""
    used = closure([node])
    examples = [each.meta.get("example_value") for each in used]
    if any(each.op not in ("call_function", "call_method") or not is_pure(each) for each in used):
        return False
    tensors = [value for value in examples if isinstance(value, torch.Tensor)]
    sizes = [value.untyped_storage().nbytes() for value in tensors]
    if not isinstance(examples[0], torch.Tensor) or not all(type(size) is int for size in sizes):
        return False
    memory = Memory(graph)
    writes = memory.writes(graph.nodes)
    return sum(sizes) <= MOST_BYTES and not any(
        each in memory.transformed or memory.roots[each] & writes for each in used
    )


def _computed(graph: fx.Graph, node: fx.Node) -> torch.Tensor | None:
    """Compute the node; None where torch raises."""
    try:
        with _disable_current_modes(), torch.no_grad():
            (value,) = extract_module(graph, [node])()
    except Exception:  # whatever an operator raises that needs what is around it
        return None
    return value if isinstance(value, torch.Tensor) else None
