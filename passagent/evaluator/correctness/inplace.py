"""Inputs that eager writes into: what it leaves there, and what a candidate may.

A value that others use (`y = x.add_(1)`) may be computed elsewhere: with whole or part of a chain of
operators that work in place replaced, an input ends in one of the states that it goes through in eager. A
write whose value nobody uses (`cache.copy_(x)`, `cache[0] = x`) is there for what it leaves: it must be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from passagent.evaluator.score import STRICT_T, tolerance
from passagent.sandbox.pieces import each_part, same_bits


@dataclass(frozen=True)
class States:
    """The values of an input before a call of eager's, and after each operator that writes into it."""

    position: int
    """The input's position."""
    before: torch.Tensor
    after: list[torch.Tensor]
    """The last is what eager leaves."""
    due: list[bool]
    """True for each of these whose write must be made, as nobody uses what it wrote as its value."""

    def judged(self, after: torch.Tensor | None) -> torch.Tensor:
        """The value after a call (None: nothing else) that is compared with the one after eager's.

        An element that is as it was before, or after an operator of eager's, counts as eager's last, unless a
        write that must be made changes it later.
        """
        final = self.after[-1]
        if after is None and not any(self.due):
            return final
        after = self.before if after is None else after
        if (after.shape, after.dtype) != (final.shape, final.dtype):
            return after
        tolerances = tolerance(str(after.dtype).removeprefix("torch."), STRICT_T)
        values = [value.reshape(-1) for value in (after, self.before, *self.after)]
        parts = each_part(partial(_judged, self.due, tolerances), *values)
        return torch.cat(parts).reshape(final.shape)


def _judged(
    due: list[bool],
    tolerances: tuple[float, float],
    _: int,
    after: torch.Tensor,
    before: torch.Tensor,
    *states: torch.Tensor,
) -> torch.Tensor:
    """Answer States.judged for a part of the elements."""
    for number, state in enumerate((before, *states)):
        if not any(due[number:]) and same_bits(after, state):
            return states[-1]
    fine = _near(before, after, (0.0, 0.0))
    for earlier, state, is_due in zip((before, *states), states, due, strict=False):
        if is_due:
            fine &= _near(earlier, state, (0.0, 0.0))
        if state is not states[-1]:
            fine |= _near(state, after, tolerances)
    return torch.where(fine, states[-1], after)


def _near(state: torch.Tensor, after: torch.Tensor, tolerances: tuple[float, float]) -> torch.Tensor:
    atol, rtol = tolerances
    equal = (after == state) | (after.isnan() & state.isnan())
    if not atol:
        return equal
    wide = torch.promote_types(state.dtype, torch.float64)
    state, after = state.to(wide), after.to(wide)
    return equal | ((after - state).abs() <= atol + rtol * state.abs())


class Watching(torch.fx.Interpreter):
    """Runs a graph one operator after the other, and keeps what each writes into `inputs`."""

    def __init__(self, graph_module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__(graph_module)
        self._inputs, self._versions = inputs, [value._version for value in inputs]
        self.states: list[list[torch.Tensor]] = [[] for _ in inputs]
        self.due: list[list[bool]] = [[] for _ in inputs]
        """True for each state that nobody uses as the value of the operator that wrote it."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        for position, written in enumerate(self._inputs):
            if written._version != self._versions[position]:
                self._versions[position] = written._version
                self.states[position].append(written.clone())
                storage = value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
                self.due[position].append(not n.users or storage != written.untyped_storage()._cdata)
        return value


def states_of(
    graph_module: torch.fx.GraphModule, args: list[Any], inputs: Sequence[torch.Tensor]
) -> tuple[list[list[torch.Tensor]], list[list[bool]]]:
    """The values of each of `inputs`, which are among `args`, after each operator that writes into it, and
    whether that write must be made: always where torch counts none, as for statistics of a batch norm.
    """
    watching = Watching(graph_module, inputs)
    watching.run(*args)
    states = [states or [written.clone()] for states, written in zip(watching.states, inputs, strict=True)]
    return states, [due or [True] for due in watching.due]
