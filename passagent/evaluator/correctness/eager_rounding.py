"""Find the rounding of eager's that shows in the outputs: replay the graph in float64, operator by operator.

Between two operators eager stores values in the tensor's dtype. A fused kernel that keeps more digits differs
by that. The replay rounds where eager does, and then leaves out the rounding of one operator after the other.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from passagent.evaluator.correctness.compare import compare
from passagent.evaluator.correctness.double import LOW, Wide, copied, wide
from passagent.evaluator.result import EXACT_T

LOOK_S = 1.0
"""After this time no further operator is looked at, s."""
_NEVER = 2
"""The level of outputs that fail at every t."""


def operators_that_show(graph_module: fx.GraphModule, inputs: list[Any]) -> list[str]:
    """Operators without whose rounding outputs fail at t = EXACT_T, as `add_1 (add)`, by how much they do.

    Empty where there is none, or where the graph does not run in float64.
    """
    until = time.monotonic() + LOOK_S
    eager = _Dtypes(graph_module)
    effects: list[tuple[int, float, str]] = []
    try:
        eager.run(*copied(inputs))
        rounding = _Replay(graph_module, eager.dtypes, eager.dtypes)
        expected = rounding.outputs(inputs)
        for name, operator in rounding.rounded.items():
            if time.monotonic() > until:
                break
            without = _Replay(graph_module, eager.dtypes, rounding.rounded.keys() - {name})
            comparison = compare(expected, without.outputs(inputs))
            level = _NEVER if comparison.passes_from_t is None else comparison.passes_from_t
            if level > EXACT_T:
                effects.append((level, comparison.max_abs_diff or 0.0, f"{name} ({operator})"))
    except (RuntimeError, TypeError, ValueError):
        return []
    return [words for *_, words in sorted(effects, reverse=True)]


class _Dtypes(fx.Interpreter):
    """Runs the graph as eager does, and notes the dtypes of the tensors that each node returns."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.dtypes: dict[str, list[torch.dtype]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        self.dtypes[n.name] = [tensor.dtype for tensor in _tensors(value)]
        return value


class _Replay(fx.Interpreter):
    """Runs the graph in float64, and rounds what the nodes `at` return to their dtypes."""

    def __init__(
        self, graph_module: fx.GraphModule, dtypes: dict[str, list[torch.dtype]], at: Collection[str]
    ) -> None:
        super().__init__(graph_module)
        self._dtypes, self._at = dtypes, at
        self.rounded: dict[str, str] = {}
        """Nodes whose values rounding changed, and their operators: a view's, or a maximum's, it does not."""

    def outputs(self, inputs: list[Any]) -> list[torch.Tensor]:
        """The tensors that the graph returns, on the CPU."""
        out = _tensors(self.run(*pytree.tree_map(wide, copied(inputs))))
        return [tensor.to(dtype).cpu() for tensor, dtype in zip(out, self._dtypes["output"], strict=True)]

    def run_node(self, n: fx.Node) -> Any:
        """The node's value."""
        with Wide():
            value = super().run_node(n)
        if n.op in ("placeholder", "output") or n.name not in self._at:
            return value
        for tensor, dtype in zip(_tensors(value), self._dtypes[n.name], strict=True):
            if dtype not in LOW:
                continue
            narrow = tensor.to(dtype).to(tensor.dtype)
            if bool(((narrow != tensor) & ~tensor.isnan()).any()):
                self.rounded[n.name] = getattr(n.target, "__name__", str(n.target))
                tensor.copy_(narrow)  # in place: what shares its memory is rounded in eager, too
        return value


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
