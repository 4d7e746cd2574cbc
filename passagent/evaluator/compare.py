"""Compare a candidate's outputs with eager's: exact metadata, then the smallest t at which values agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from passagent.evaluator.result import Worst
from passagent.evaluator.score import T_RANGE, tolerance


@dataclass(frozen=True)
class Comparison:
    """How far two lists of outputs agree."""

    problem: str | None
    """A difference of arity, shape or dtype: a runtime error, whatever the values."""
    passes_from_t: int | None
    """Smallest t in -10..1 at which all values are within tolerance; None if at none."""
    max_abs_diff: float | None
    worst: Worst | None
    """The element that is furthest outside; None if all are equal."""


def compare(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> Comparison:
    """Compare outputs element by element on the CPU, in float64.

    NaN agrees with NaN only, an infinity with the same infinity only. Shapes and dtypes must be equal.
    """
    if len(expected) != len(got):
        return Comparison(f"{len(got)} outputs, eager has {len(expected)}", None, None, None)
    level: int | None = T_RANGE[0]
    largest, worst, worst_excess = 0.0, None, -1.0
    for position, (want, have) in enumerate(zip(expected, got, strict=True)):
        problem = _metadata_problem(position, want, have)
        if problem:
            return Comparison(problem, None, None, None)
        one = _compare_output(position, want, have)
        level = None if level is None or one.level is None else max(level, one.level)
        largest = max(largest, one.max_abs_diff)
        if one.worst is not None and one.excess > worst_excess:
            worst, worst_excess = one.worst, one.excess
    return Comparison(None, level, largest, worst)


def _metadata_problem(position: int, want: torch.Tensor, have: torch.Tensor) -> str | None:
    if want.dtype != have.dtype:
        return f"output {position} is {_name(have.dtype)}, eager's is {_name(want.dtype)}"
    if want.shape != have.shape:
        return f"output {position} has shape {tuple(have.shape)}, eager's has {tuple(want.shape)}"
    return None


@dataclass(frozen=True)
class _Output:
    level: int | None
    max_abs_diff: float
    worst: Worst | None
    excess: float


def _compare_output(position: int, want: torch.Tensor, have: torch.Tensor) -> _Output:
    if want.numel() == 0 or torch.equal(want, have):
        return _Output(T_RANGE[0], 0.0, None, -1.0)
    dtype = _name(want.dtype)
    a, b = _as_real(want), _as_real(have)
    finite = a.isfinite() & b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    diff = torch.where(finite, (a - b).abs(), torch.where(same, 0.0, torch.inf))
    magnitude = torch.where(finite, a.abs(), 0.0)
    level = _smallest_level(dtype, diff, magnitude)
    atol, rtol = tolerance(dtype, -5)
    excess = diff / (atol + rtol * magnitude) if atol else diff
    where = int(excess.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(where), a.shape)] if a.dim() else []
    worst = Worst(
        output=position, index=index, expected=float(a.flatten()[where]), got=float(b.flatten()[where])
    )
    return _Output(level, float(diff.max()), worst, float(excess.flatten()[where]))


def _smallest_level(dtype: str, diff: torch.Tensor, magnitude: torch.Tensor) -> int | None:
    """The smallest t in -10..1 whose tolerance holds everywhere: tolerances grow with t, so bisect."""
    low, high = T_RANGE[0], 2
    while low < high:
        middle = (low + high) // 2
        atol, rtol = tolerance(dtype, middle)
        if bool((diff <= atol + rtol * magnitude).all()):
            high = middle
        else:
            low = middle + 1
    return low if low <= 1 else None


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128))
    return tensor.to(torch.float64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
