"""Compare a candidate's outputs with eager's: exact metadata, then the smallest t at which values agree."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from passagent.evaluator.result import Worst
from passagent.evaluator.score import T_RANGE, tolerance
from passagent.sandbox.pieces import chunks, each_part, equal, scratch

_STRICT = -5
"""The t whose tolerance tells which element is furthest outside."""
SURELY = 0.99
"""Part of a tolerance that float32 arithmetic decides about."""
_HOPELESS = 2
"""Beyond t = 1, where correctness is judged last."""


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
        problem = metadata_problem(position, want, have)
        if problem:
            return Comparison(problem, None, None, None)
        output = _compare_output(position, want, have)
        level = None if level is None or output.level is None else max(level, output.level)
        largest = max(largest, output.max_abs_diff)
        if output.worst is not None and output.excess > worst_excess:
            worst, worst_excess = output.worst, output.excess
    return Comparison(None, level, largest, worst)


def surely_agree(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor], t: int) -> bool:
    """Tell cheaply whether `compare` would find that all values agree from t on; False: call `compare`.

    That is so for equal values, and for finite ones of at most 32 bits that lie within 99% of the tolerance.
    """
    return len(expected) == len(got) and all(
        want.dtype == have.dtype
        and want.shape == have.shape
        and (equal(want, have) or _surely_within(want, have, t))
        for want, have in zip(expected, got, strict=True)
    )


def _surely_within(want: torch.Tensor, have: torch.Tensor, t: int) -> bool:
    if not want.is_floating_point() or want.itemsize > 4 or want.numel() == 0:
        return False
    atol, rtol = (SURELY * bound for bound in tolerance(_name(want.dtype), t))

    def within(_: int, want: torch.Tensor, have: torch.Tensor) -> bool:
        memory = scratch(2, want, torch.float32)
        for wanted_part, got_part in chunks(want, have):
            allowed, diff = memory[:, : wanted_part.numel()]
            diff.copy_(got_part).sub_(allowed.copy_(wanted_part)).abs_()
            if not float(allowed.abs_().mul_(rtol).add_(atol).sub_(diff).min()) >= 0:
                return False
        return True

    return all(each_part(within, want.reshape(-1), have.reshape(-1)))


def metadata_problem(position: int, want: torch.Tensor, have: torch.Tensor) -> str | None:
    """How an output's dtype or shape differs from eager's, in words."""
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
    if want.numel() == 0 or equal(want, have):
        return _Output(T_RANGE[0], 0.0, None, -1.0)
    flat, other = _as_real(want), _as_real(have)
    parts = each_part(functools.partial(_compare_part, _name(want.dtype)), flat, other)
    level, most = max(part.level for part in parts), max(part.excess for part in parts)
    where = next(part.where for part in parts if part.excess == most)
    shape = (*want.shape, 2) if want.is_complex() else tuple(want.shape)
    index = [int(i) for i in np.unravel_index(where, shape)] if shape else []
    worst = Worst(output=position, index=index, expected=float(flat[where]), got=float(other[where]))
    largest = max(part.max_abs_diff for part in parts)
    return _Output(level if level < _HOPELESS else None, largest, worst, most)


@dataclass(frozen=True)
class _Part:
    level: int
    max_abs_diff: float
    where: int
    """The element that is furthest outside, and how far: `excess`."""
    excess: float


def _compare_part(dtype: str, first: int, flat: torch.Tensor, other: torch.Tensor) -> _Part:
    """The elements from `first` on that a thread takes."""
    level, largest, most, where, start = T_RANGE[0], 0.0, -1.0, first, first
    atol, rtol = tolerance(dtype, _STRICT)
    memory = scratch(3, flat, torch.float64)
    for want, have in chunks(flat, other):
        magnitude, diff, spare = memory[:, : want.numel()]
        magnitude.copy_(want)
        diff.copy_(have).sub_(magnitude).abs_()
        magnitude.abs_()
        if not atol:
            diff.masked_fill_((want != have) & (diff == 0), 1.0)  # integers beyond 2^53
        if not math.isfinite(highest := float(diff.max())):
            _mend(magnitude, diff, want, have)
            highest = float(diff.max())
        largest = max(largest, highest)
        while level < _HOPELESS and not _within(diff, magnitude, tolerance(dtype, level), spare):
            level += 1
        if highest > most * (atol or 1.0):  # else no element of these is the furthest outside
            excess = diff / (atol + rtol * magnitude) if atol else diff
            furthest = int(excess.argmax())
            if float(excess[furthest]) > most:
                most, where = float(excess[furthest]), start + furthest
        start += want.numel()
    return _Part(level, largest, where, most)


def _mend(magnitude: torch.Tensor, diff: torch.Tensor, want: torch.Tensor, have: torch.Tensor) -> None:
    """Where an infinity or a NaN is: no difference if both are the same, else an infinite one."""
    finite = want.isfinite() & have.isfinite()
    same = (want == have) | (want.isnan() & have.isnan())
    magnitude.masked_fill_(~finite, 0.0)
    diff.masked_fill_(~finite & same, 0.0).masked_fill_(~finite & ~same, torch.inf)


def _within(
    diff: torch.Tensor, magnitude: torch.Tensor, tolerances: tuple[float, float], room: torch.Tensor
) -> bool:
    atol, rtol = tolerances
    return float(torch.mul(magnitude, rtol, out=room).add_(atol).sub_(diff).min()) >= 0


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Flat and real: complex numbers as pairs."""
    flat = tensor.reshape(-1)
    return torch.view_as_real(flat.resolve_conj()).reshape(-1) if tensor.is_complex() else flat


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
