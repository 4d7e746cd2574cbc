"""Values that a captured graph need not compute in every call.

Those of no input, as a causal mask is, are known when it is compiled. Those of parameters alone are computed
once, and again when a parameter has changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from passagent.evaluator.matching.effects import Memory, is_pure
from passagent.tasks.extract.structural_hash import closure

MOST_BYTES = 1 << 30
"""Limit on the memory of all tensors that are computed for one value, together."""


def extract_module(graph: fx.Graph, nodes: list[fx.Node]) -> fx.GraphModule:
    """Return what computes a list of the nodes' values, of those inputs alone that they need."""
    inside, copies, used = fx.Graph(), dict[fx.Node, fx.Node](), closure(nodes)
    for node in graph.nodes:
        if node in used:
            copies[node] = inside.node_copy(node, copies.__getitem__)
    inside.output([copies[node] for node in nodes])
    return fx.GraphModule({}, inside)


class Prepared:
    """Values of parameters alone, which a rewritten graph is given as further inputs.

    They stay at their addresses. A parameter that is another tensor than at the last call, lies elsewhere or
    has another version has them computed again: after an optimizer's step or load_state_dict. Writes through
    `.data`, and calls that a CUDA graph of the user's replays, are not seen.
    """

    def __init__(self, module: fx.GraphModule, positions: list[int], examples: list[torch.Tensor]) -> None:
        """`positions`: of the parameters among the graph's inputs; `examples`: fake values."""
        self._module, self._positions, self.examples = module, positions, examples
        self._values: list[torch.Tensor] | None = None
        self._seen: list[tuple[weakref.ref[torch.Tensor], int, int]] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return sum(value.numel() * value.element_size() for value in self.examples)

    def of(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The values for a call of the graph with `args`."""
        with self._lock:
            parameters = [args[position] for position in self._positions]
            if self._values is None or not all(map(_is_same, parameters, self._seen)):
                with torch.no_grad():
                    computed = self._module(*parameters)
                    if self._values is None:
                        self._values = [
                            torch.empty_strided(
                                like.shape, like.stride(), dtype=like.dtype, device=new.device
                            )
                            for like, new in zip(self.examples, computed, strict=True)
                        ]
                    for value, new in zip(self._values, computed, strict=True):
                        value.copy_(new)
                self._seen = [(weakref.ref(p), p._version, p.data_ptr()) for p in parameters]
            return self._values


def _is_same(parameter: torch.Tensor, last_call: tuple[weakref.ref[torch.Tensor], int, int]) -> bool:
    reference, version, address = last_call
    return reference() is parameter and parameter._version == version and parameter.data_ptr() == address


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
