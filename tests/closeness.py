"""Results held against float64, in multiples of eager's own error: no bound rests on one CPU's rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from passagent.evaluator.correctness.double import Wide, wide

_JUMP = 2.0**-5
"""Of the largest value: where eager differs from float64 by more, they lie on different sides of a step."""


def assert_as_exact_as_eager(got: Any, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Compare what was computed from `inputs` with eager's `function(*inputs)`, and both with float64.

    Raises AssertionError where a tensor differs in shape or dtype, or errs by a multiple of eager's error.
    """
    with torch.no_grad():
        eager = function(*_copies(inputs))
        precise = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
        with Wide():
            exact = precise(*[wide(value) for value in _copies(inputs)])
    for have, want, true in zip(*map(tree_leaves, (got, eager, exact)), strict=True):
        assert_as_near(have, want, true)


def assert_as_near(have: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> None:
    """Hold one result's error against eager's; `exact` is the same in float64 (None: eager's stands for it).

    The error may be a few times eager's largest, plus a few units in the last place of the largest value.
    What is no float, and where NaN and the infinities lie, must be eager's.
    """
    assert (have.dtype, have.shape) == (eager.dtype, eager.shape)
    if not eager.is_floating_point():
        assert torch.equal(have, eager)
        return
    ours, theirs = have.detach().double(), eager.detach().double()
    finite = theirs.isfinite()
    torch.testing.assert_close(ours[~finite], theirs[~finite], rtol=0, atol=0, equal_nan=True)
    true = theirs if exact is None else exact.detach().double()
    ours, theirs, true = (values[finite & true.isfinite()] for values in (ours, theirs, true))
    if not ours.numel():
        return
    size, error, off = true.abs().max(), (theirs - true).abs(), (ours - true).abs()
    steady = error <= _JUMP * size
    eager_error = error.where(steady, 0.0).max()
    times = 8 if eager.dtype in (torch.float32, torch.float64) else 2
    allowed = times * (eager_error + torch.finfo(eager.dtype).eps * size)
    off = off.where(steady, torch.minimum(off, (ours - theirs).abs()))
    assert off.max() <= allowed, f"off by {off.max():.3g}, eager by {eager_error:.3g}, of {size:.3g}"


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
