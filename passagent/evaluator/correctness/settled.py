"""Eager's values that are settled: on special values a difference counts only where eager would keep it.

Eager is computed again on inputs that are moved by a unit in their last places, with sums that are moved by
a rounding of their terms, and in float64, where nothing overflows, with and without such moves of inputs.
Where it then gives a value of another class (NaN, an infinity, finite), or others all along a row, it judges
nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from passagent.evaluator.correctness.compare import SURELY
from passagent.evaluator.correctness.double import Classes, blurred, copied, in_float64, nudged, run_graph
from passagent.evaluator.correctness.precision import times_eager
from passagent.evaluator.result import Worst
from passagent.evaluator.score import STRICT_T, tolerance
from passagent.sandbox.pieces import in_threads, same_bits

_UNSETTLED = 0.25
"""A row is not settled where eager's values differ by more than this along it, on average, in tolerances."""
_PIECE = 1 << 18
"""Elements that are looked at together, at most, on a GPU 64 times as many; a longer row is cut."""


def settle(
    graph_module: torch.fx.GraphModule, inputs: list[Any], written: Sequence[int], seed: int
) -> list[torch.Tensor]:
    """Return the room of each of eager's outputs (see room_of). `seed`: of the moves."""
    eager = run_graph(graph_module, copied(inputs), written)
    others = nudged(graph_module, inputs, written, seed)
    rounded, precise = Classes(), Classes()
    is_whole = not all(value.is_floating_point() or value.is_complex() for value in eager)
    if is_whole:
        with rounded:
            run_graph(graph_module, copied(inputs), written)
    with precise if is_whole else nullcontext():
        exact = in_float64(graph_module, copied(inputs), written)
    is_steady = not is_whole or (exact is not None and rounded.counts == precise.counts)
    if exact is not None and [value.shape for value in exact] == [value.shape for value in eager]:
        # what overflows in eager may rest on the last places of float64's values
        again = in_float64(graph_module, blurred(inputs, seed), written)
        others += [exact, exact if again is None else again]
    pairs = zip(eager, zip(*others, strict=True), strict=True)
    return [room_of(value, values, is_steady) for value, values in pairs]


def room_of(eager: torch.Tensor, others: Sequence[torch.Tensor], is_steady: bool = True) -> torch.Tensor:
    """Return how far a value may be off at each element, flat, float32; infinite where nothing counts.

    `others`: what else eager gives. Where values that are not finite along the way are others in float64, it
    is not `is_steady`: which sums and products overflow depends on their order. Integers and bools, which
    show neither infinities nor NaN that they come from, then do not count.
    """
    if not is_steady and not (eager.is_floating_point() or eager.is_complex()):
        return torch.full((eager.numel(),), torch.inf)
    tolerances = tolerance(str(eager.dtype).removeprefix("torch."), STRICT_T)
    pieces = list(zip(*map(_pieces, [eager, *others]), strict=True))
    return torch.cat(in_threads(lambda want, *again: _room(want, again, tolerances), pieces))


def first_beyond(
    position: int, eager: torch.Tensor, room: torch.Tensor | None, got: torch.Tensor
) -> Worst | None:
    """Return an element of an output that is outside of its room: the furthest of the first such piece.

    `room`: None: as if eager kept all of its values.
    """
    shape = (*eager.shape, 2) if eager.is_complex() else tuple(eager.shape)
    pieces = list(zip(_pieces(eager), _pieces(got), strict=True))
    starts = itertools.accumulate((want.numel() for want, _ in pieces), initial=0)
    parts = [
        (start, None if room is None else room[start : start + want.numel()], want, have)
        for start, (want, have) in zip(starts, pieces, strict=False)
    ]
    for furthest in in_threads(_beyond, parts):
        if furthest is not None:
            place, expected, value = furthest
            index = [int(i) for i in np.unravel_index(place, shape)] if shape else []
            return Worst(output=position, index=index, expected=expected, got=value)
    return None


def _beyond(
    start: int, room: torch.Tensor | None, want: torch.Tensor, have: torch.Tensor
) -> tuple[int, float, float] | None:
    """Return the place of the element that is furthest outside, and both values; None if all are inside."""
    if same_bits(want, have):
        return None
    atol, rtol = tolerance(str(want.dtype).removeprefix("torch."), STRICT_T)
    if not want.is_floating_point():
        if torch.equal(have, want):
            return None
    else:
        precise = torch.promote_types(want.dtype, torch.float32)
        exact, value = want.to(precise), have.to(precise)
        surely = (value - exact).abs_() < SURELY * (atol + rtol * exact.abs())  # neither is infinite
        if bool((surely | (value == exact) | (value.isnan() & exact.isnan())).all()):
            return None
    most = (_room(want, [want], (atol, rtol)) if room is None else room).reshape(want.shape)
    off = (have.double() - want.double()).abs()
    is_off = (off > most) | ((have != want) & (most == 0) & ~want.isnan())
    bad = (is_off | (_class(want) != _class(have))) & (most < torch.inf)
    if not bool(bad.any()):
        return None
    at = int((off.nan_to_num(torch.inf) / most.double()).where(bad, -1.0).argmax())
    return start + at, float(want.reshape(-1)[at]), float(have.reshape(-1)[at])


def _room(
    want: torch.Tensor, others: Sequence[torch.Tensor], tolerances: tuple[float, float]
) -> torch.Tensor:
    """Return the room of a piece's elements, flat, float32."""
    rounded = [other.to(want.dtype) for other in others]
    if not want.is_floating_point():
        spread = torch.stack([(value.double() - want.double()).abs() for value in rounded]).amax(0)
        unsettled = (spread > 0) & (want.dtype == torch.bool)
        return (times_eager(want) * spread).masked_fill(unsettled, torch.inf).float().reshape(-1)
    lowest, highest = want, want
    for value in rounded:
        lowest, highest = torch.minimum(lowest, value), torch.maximum(highest, value)
    room = _room_between(want, lowest, highest, torch.zeros_like(want, dtype=torch.bool), tolerances)
    is_finite = (lowest.isfinite() & highest.isfinite()).all(-1)
    if not bool(is_finite.all()):  # most rows are finite, and of one class without a look
        rows, moves = want[~is_finite], torch.zeros_like(want[~is_finite], dtype=torch.bool)
        lowest = highest = rows
        for other, value in zip(others, rounded, strict=True):
            own = value[~is_finite]
            # sums of float16 are float32: what is beyond float16 is infinite in any order of them
            for classed in (own,) if want.dtype == torch.float16 else (own, other[~is_finite]):
                moves |= _class(classed) != _class(rows)
            lowest, highest = torch.fmin(lowest, own), torch.fmax(highest, own)
        room[~is_finite] = _room_between(rows, lowest, highest, moves, tolerances)
    return room.float().reshape(-1)


def _room_between(
    want: torch.Tensor,
    lowest: torch.Tensor,
    highest: torch.Tensor,
    moves: torch.Tensor,
    tolerances: tuple[float, float],
) -> torch.Tensor:
    """Return the room of rows by the ends of what else eager gives, float64; `moves`: to another class.

    A value may be off by some times what eager's own differ by there, and in tolerances along its row.
    """
    times = times_eager(want)
    lowest, highest, value = lowest.double(), highest.double(), want.double()
    spread = torch.maximum(highest - value, value - lowest).nan_to_num(0.0, 0.0, 0.0)
    within = tolerances[0] + tolerances[1] * value.abs().nan_to_num(0.0, 0.0, 0.0)
    # what is of either sign may be the quotient by a sum of which nothing is left
    moves = moves | ((spread > within) & (lowest < 0) & (highest > 0))
    share = (spread / within).clamp(max=1.0).masked_fill(moves, 1.0).mean(-1, keepdim=True)
    room = within * (1 + times * share) + times * spread
    unsettled = moves | (want.isfinite() & (share > _UNSETTLED))
    return room.masked_fill(unsettled, torch.inf)


def _pieces(values: torch.Tensor) -> list[torch.Tensor]:
    """Return the values as real rows along the last dimension, some at a time."""
    if values.is_complex():  # one that is not finite is as good as another: how products end differs
        values = values.resolve_conj().masked_fill(~values.isfinite(), complex("nan+nanj"))
        values = torch.view_as_real(values).flatten(-2)
    width = max(1, values.shape[-1] if values.dim() > 1 else values.numel())
    size = _PIECE << 6 * values.is_cuda
    if width > size:
        return [part[None] for part in values.reshape(-1).split(size)]
    return list(values.reshape(-1, width).split(size // width))


def _class(values: torch.Tensor) -> torch.Tensor:
    """Return a number for each value's class: NaN, an infinity of either sign, or finite."""
    return torch.where(values.isfinite(), 0, torch.where(values.isnan(), 3, values.sign()))
