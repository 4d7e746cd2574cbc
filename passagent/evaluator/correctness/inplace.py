"""Inputs that eager writes into: what it leaves there, and what a candidate may.

A pass may write there as eager does, or elsewhere: with whole or part of a chain of operators that work in
place replaced, an input ends in one of the states that it goes through in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from passagent.evaluator.score import STRICT_T, tolerance


@dataclass(frozen=True)
class States:
    """The values of an input before a call of eager's, and after each operator that writes into it."""

    position: int
    """Of the input."""
    before: torch.Tensor
    after: list[torch.Tensor]
    """The last is what eager leaves."""

    def judged(self, left: torch.Tensor | None) -> torch.Tensor:
        """What a call left there (None: nothing else), to hold against what eager leaves.

        An element that is as it was before, or after an operator of eager's, counts as eager's last.
        """
        final = self.after[-1]
        if left is None:
            return final
        if (left.shape, left.dtype) != (final.shape, final.dtype):
            return left
        fine = _near(self.before, left, (0.0, 0.0))
        for state in self.after[:-1]:
            fine |= _near(state, left, tolerance(str(left.dtype).removeprefix("torch."), STRICT_T))
        return torch.where(fine, final, left)


def _near(state: torch.Tensor, left: torch.Tensor, tolerances: tuple[float, float]) -> torch.Tensor:
    atol, rtol = tolerances
    equal = (left == state) | (left.isnan() & state.isnan())
    if not atol:
        return equal
    wide = torch.promote_types(state.dtype, torch.float64)
    state, left = state.to(wide), left.to(wide)
    return equal | ((left - state).abs() <= atol + rtol * state.abs())


class Watching(torch.fx.Interpreter):
    """Runs a graph one operator after the other, and keeps what each writes into `inputs`."""

    def __init__(self, graph_module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__(graph_module)
        self._inputs, self._versions = inputs, [value._version for value in inputs]
        self.states: list[list[torch.Tensor]] = [[] for _ in inputs]

    def run_node(self, n: torch.fx.Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        for position, (written, states) in enumerate(zip(self._inputs, self.states, strict=True)):
            if written._version != self._versions[position]:
                self._versions[position] = written._version
                states.append(written.clone())
        return value


def states_of(
    graph_module: torch.fx.GraphModule, args: list[Any], inputs: Sequence[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """The values of each of `inputs`, which are among `args`, after each operator that writes into it."""
    watching = Watching(graph_module, inputs)
    watching.run(*args)
    return [states or [written.clone()] for states, written in zip(watching.states, inputs, strict=True)]
