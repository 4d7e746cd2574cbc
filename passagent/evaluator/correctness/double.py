"""Eager in float64: what a graph would compute if no operator rounded to its dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from passagent.evaluator.correctness.mode import Mode
from passagent.tasks.special import step_bits

LOW = (torch.float16, torch.bfloat16, torch.float32)


def in_float64(
    graph_module: torch.fx.GraphModule, inputs: list[Any], written: Sequence[int] = ()
) -> list[torch.Tensor] | None:
    """The tensors that the graph returns, with every floating-point value carried in float64, and what it
    leaves in the inputs `written`. What is no narrower float it may write into as it is.

    None where it does not run so: a graph that looks at the bits of its values, a kernel that has no float64.
    """
    if any(isinstance(value, torch.Tensor) and value.is_complex() for value in inputs):
        return None
    carried = [wide(value) for value in inputs]
    try:
        with Wide():
            out = graph_module.forward(*carried)
    except (RuntimeError, TypeError, ValueError):
        return None
    outputs = [value for value in pytree.tree_leaves(out) if isinstance(value, torch.Tensor)]
    return outputs + [carried[i] for i in written]


def nudged(
    graph_module: torch.fx.GraphModule, inputs: list[Any], written: Sequence[int], seed: int
) -> list[torch.Tensor]:
    """Return eager's outputs on floats moved by a unit in their last place, up or down as the seed says."""
    generator, values = torch.Generator().manual_seed(seed // 2), list(inputs)
    for i, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.dtype in (*LOW, torch.float64):
            steps = torch.randint(2, value.shape, generator=generator, dtype=torch.int8) * 2 - 1
            values[i] = step_bits(value, steps.to(value.device) * (1 - seed % 2 * 2))
    out = pytree.tree_leaves(graph_module.forward(*values))
    return [value for value in out if isinstance(value, torch.Tensor)] + [values[i] for i in written]


def changes_class(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    """Tell whether other values are infinite or NaN along the way when the graph is computed in float64.

    Then sums or products overflow, and which of them do depends on the order of sums. Also true where the
    graph does not run in float64.
    """
    rounded, precise = Classes(), Classes()
    with rounded:
        graph_module.forward(*_copied(inputs))
    try:
        with precise, Wide():
            graph_module.forward(*map(wide, _copied(inputs)))
    except (RuntimeError, TypeError, ValueError):
        return True
    return rounded.counts != precise.counts


def _copied(inputs: list[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


class Classes(Mode):
    """Counts NaN, +inf and -inf in the floats that operators return where their arguments hold others."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[list[int]] = []

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator and count."""
        before = _classes((args, kwargs))
        returned = func(*args, **kwargs)
        self.counts += [counts for counts in _classes(returned) if counts not in before]
        return returned


def _classes(values: Any) -> list[list[int]]:
    floats = [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return [[int(is_it(v).sum()) for is_it in (torch.isnan, torch.isposinf, torch.isneginf)] for v in floats]


class Wide(Mode):
    """Every dtype that an operator is asked for and that is a narrower float becomes float64."""

    def on_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator in float64."""
        if func is torch.ops.aten.view.dtype:
            raise TypeError("the bits of a value have no float64 counterpart")
        args, kwargs = pytree.tree_map(_wide_dtype, (args, kwargs))
        return pytree.tree_map(wide, func(*args, **kwargs))


def _wide_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in LOW else value


def wide(value: Any) -> Any:
    """A narrower float tensor in float64; any other value as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in LOW else value
