"""Compare a candidate's outputs with eager's: exact metadata, then the smallest t at which values agree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from passagent.evaluator.result import Worst
from passagent.evaluator.score import T_RANGE, tolerance

_CHUNK = 1 << 15
"""Elements that are compared at a time: what is computed from them stays in the caches, and torch splits no
operator on so few among threads, which would wait for cores that the machine has given to others."""
_PART = 1 << 18
"""Elements that a thread compares, of outputs that are larger."""
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
    flat, other = _as_real(want), _as_real(have)
    starts = range(0, flat.numel(), _PART)

    def part(start: int) -> _Part:
        return _compare_part(flat, other, _name(want.dtype), start)

    if len(starts) == 1:
        parts = [part(0)]
    else:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as beside:
            parts = list(beside.map(part, starts))
    level, most = max(one.level for one in parts), max(one.excess for one in parts)
    where = next(one.where for one in parts if one.excess == most)
    shape = (*want.shape, 2) if want.is_complex() else tuple(want.shape)
    index = [int(i) for i in torch.unravel_index(torch.tensor(where), shape)] if shape else []
    worst = Worst(output=position, index=index, expected=float(flat[where]), got=float(other[where]))
    largest = max(one.max_abs_diff for one in parts)
    return _Output(level if level < _HOPELESS else None, largest, worst, most)


@dataclass(frozen=True)
class _Part:
    level: int
    max_abs_diff: float
    where: int
    """The element that is furthest outside, and how far: `excess`."""
    excess: float


def _compare_part(flat: torch.Tensor, other: torch.Tensor, dtype: str, first: int) -> _Part:
    """The elements from `first` on, as many as a thread takes."""
    level, largest, most, where = T_RANGE[0], 0.0, -1.0, first
    strict_atol, strict_rtol = tolerance(dtype, -5)
    for start in range(first, min(first + _PART, flat.numel()), _CHUNK):
        a, b = (values[start : start + _CHUNK].to(torch.float64) for values in (flat, other))
        diff, magnitude = _differences(a, b)
        while level < _HOPELESS and not _within(diff, magnitude, dtype, level):
            level += 1
        largest = max(largest, float(diff.max()))
        excess = diff / (strict_atol + strict_rtol * magnitude) if strict_atol else diff
        highest = int(excess.argmax())
        if float(excess[highest]) > most:
            most, where = float(excess[highest]), start + highest
    return _Part(level, largest, where, most)


def _differences(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """|a - b| and |a|; where an infinity or a NaN is, 0 if both are the same, else an infinite difference."""
    diff, magnitude = (a - b).abs(), a.abs()
    if bool(diff.sum().isfinite()):
        return diff, magnitude
    finite = a.isfinite() & b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(finite, diff, torch.where(same, 0.0, torch.inf)), magnitude.where(finite, 0.0)


def _within(diff: torch.Tensor, magnitude: torch.Tensor, dtype: str, level: int) -> bool:
    atol, rtol = tolerance(dtype, level)
    return bool((diff <= atol + rtol * magnitude).all())


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Flat and real: complex numbers as pairs."""
    flat = tensor.reshape(-1)
    return torch.view_as_real(flat.resolve_conj()).reshape(-1) if tensor.is_complex() else flat


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
