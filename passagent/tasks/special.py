"""Special values of inputs: what random draws do not hold, and a pass may leave out.

A set of them is an ordinary one in which some rows are exchanged. The numbers of the graph, whatever operator
takes them, and their neighbours are among the values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from passagent.tasks.inputs import DEFAULT_STD, FAR_MOST, LARGE, is_mask
from passagent.tasks.meta import TensorMeta
from passagent.tasks.uses import range_of

KINDS = tuple(
    f"with special values ({kind})"
    for kind in ("finite", "not finite", "ends", "a single row", "a single far value")
)
"""Names of the sets. The last two exchange one row, or a float in each of two, of one input: several may hide
each other, and a kernel that looks at some of many knows what to do with all."""
SINGLE = KINDS[3:]
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ROWS, _ELEMENTS = 1024, 1 << 22
"""Rows and elements of an input that are exchanged, at most; 8 rows may hold more elements."""
_SOME = 4
"""One in so many elements of a row is exchanged, where a step does not ask for one, two or all."""
_Step = tuple[int, Sequence[float]]
"""Exchange so many places of a row (0: all, for one value; _SOME: a part) for values of a pool, in turn."""


def numbers_of(value: Any) -> Iterator[float]:
    """Yield the finite numbers in a captured graph's data (graphio.py)."""
    if isinstance(value, list):
        for item in value:
            yield from numbers_of(item)
    elif isinstance(value, dict):
        yield from numbers_of([item for key, item in value.items() if key not in ("node", "name", "float")])
    elif type(value) in (int, float) and math.isfinite(value):
        yield value


def may_exchange(meta: TensorMeta) -> bool:
    """Tell whether an input (of uses.wider) may hold special values.

    Parameters and variances stay ordinary, and so does what may decide a shape: a single float, and integers
    and bools of no role that the graph allows other values.
    """
    if meta.dtype in _FLOATS:
        return meta.numel > 1 and not (meta.is_parameter or meta.is_variance)
    is_free = meta.role in ("index", "mask", "any") or (meta.dtype == "bool" and not meta.role)
    return is_free and meta.numel > 0


def exchanged(
    meta: TensorMeta,
    ordinary: torch.Tensor,
    kind: str,
    numbers: Sequence[float],
    generator: torch.Generator,
) -> torch.Tensor:
    """`ordinary` values of an input with rows exchanged: for a set of special values of this `kind`.

    `numbers`: of the graph. Rows lie along the last dimension, in sets of the last two kinds along any.
    """
    dims = [dim for dim, size in enumerate(ordinary.shape) if 1 < size < ordinary.numel()]
    drawn = int(torch.randint(len(dims), (), generator=generator)) if kind in KINDS[2:] and dims else -1
    moved = ordinary.movedim(dims[drawn], -1) if dims else ordinary.reshape(1, -1)
    values, fills = moved.clone(memory_format=torch.contiguous_format), _fills(meta, kind, numbers)
    width = values.shape[-1] if dims else max(1, values.numel() // len(fills))
    whole = values.reshape(-1)[: values.numel() // width * width].view(-1, width)
    count = min(len(whole), max(8, min(_ROWS, _ELEMENTS // width)))
    count = {KINDS[3]: 1, KINDS[4]: min(2, count)}.get(kind, count)
    places = torch.randint(len(whole), (4 * count,), generator=generator).unique()
    places = places if len(whole) > 4 * _ROWS else torch.arange(len(whole))
    places = places[torch.randperm(len(places), generator=generator)[:count]]
    for start, part in enumerate(torch.randperm(len(fills), generator=generator).tolist()):
        rows = whole[at := places[start :: len(fills)]]
        for number, pool in fills[part]:
            _exchange(rows, number, pool, generator)
        whole[at] = rows
    return values.movedim(-1, dims[drawn]).contiguous() if dims else values.reshape(ordinary.shape)


def _fills(meta: TensorMeta, kind: str, numbers: Sequence[float]) -> list[list[_Step]]:
    """Return the steps that exchange values in rows, one list for each part of the rows."""
    levels = meta.levels or ((0, 1) if meta.dtype == "bool" or is_mask(meta) else None)
    if levels is not None:
        low, high = [min(levels)], [max(levels)]
        return [[(0, low)], [(0, high)], [(0, low), (1, high)], [(0, high), (1, low)], []]
    if meta.is_integer:
        span = range_of(meta)
        whole = [round(n) + step for n in numbers if n == round(n) for step in (0, -1, 1)]
        powers = [2**power + step for power in (0, 1, 8, 15, 16, 24, 31, 32, 40) for step in (-1, 0, 1)]
        common, from_graph = (
            [n for n in pool if span[0] <= n <= span[1]]
            for pool in ([*span, sum(span) // 2, *powers, *(-n for n in powers)], whole)
        )
        either = from_graph or common
        return [[(_SOME, common + from_graph)], [(0, common)], [(1, either)], [(0, either)], [], []]
    dtype, nan, inf = getattr(torch, meta.dtype), math.nan, math.inf
    single: list[list[_Step]] = [[(1, [nan])], [(1, [inf])], [(1, [-inf])], [(0, [-inf])]]
    if kind == KINDS[1]:
        return [*single, [(_SOME, [nan, inf, -inf])], [], [], []]
    if kind == KINDS[3]:
        return single
    limits = torch.finfo(dtype)
    if kind == KINDS[4]:
        size, most = max(meta.std or DEFAULT_STD, 1.0) * LARGE * FAR_MOST, limits.max / 8
        both: list[list[_Step]] = []
        for reach in (size, -size):
            values = [(meta.mean or 0.0) + part for part in (reach, reach / 8)]
            both.append([(1, [min(max(value, -most), most) for value in values])])
        return both
    powers = [2.0**power for power in (*range(-4, 32), 40)] + [10.0**power for power in range(-36, 37)]
    if kind == KINDS[2]:
        small = _both([limits.tiny / 4, limits.tiny, 0.0])
        ends = _both([limits.max, limits.tiny, limits.tiny / 4, *(n for n in powers[::8] if n < limits.max)])
        return [[(1, ends)], [(_SOME, small)], [(2, ends)], [(0, ends)], [], [], [], []]
    moderate = [n for n in powers if 1e-4 < n < min(1e13, limits.max / 8)]
    usual = _both([0.0, 1.5, 2.5, 3.0, 3.5, 5.0, 6.0, 7.0, *moderate])
    recorded = [n for n in (meta.min_val, meta.max_val) if n is not None]
    held = torch.tensor([*numbers, *recorded], dtype=torch.float64).to(dtype)
    near = [held, step_bits(held, 1), step_bits(held, -1), held * 0.75, held * 1.25, held + 0.25, held - 0.25]
    from_graph = [n for n in torch.cat(near).tolist() if math.isfinite(n)] or usual
    far, lowest = _both([2.0**power for power in range(7, 14)]), [min([-1e4, *recorded, *numbers])]
    # An exponential of these is nearly the largest number, and a subnormal one.
    exponents = [math.log(limits.max) - 1, math.log(limits.tiny) - 2]
    rows: list[list[_Step]] = [[(0, usual + from_graph)], [(0, lowest)], [(0, [0.0, -0.0])]]
    return [[(_SOME, usual)], [(_SOME, from_graph)], [(_SOME, exponents)], [(2, far)], *rows, [], []]


def _exchange(rows: torch.Tensor, count: int, pool: Sequence[float], generator: torch.Generator) -> None:
    """Make one step (see _Step) in `rows`; the values of a pool come up in turn, in a random order."""
    shape = (len(rows), count or 1)
    places = torch.randint(rows.shape[1], shape, generator=generator)
    if count == _SOME:
        picked = torch.rand(rows.shape, generator=generator) * _SOME < 1
        shape = (int(picked.sum()), 1)
    mixed = [pool[i] for i in torch.randperm(len(pool), generator=generator).tolist()]
    taken = list(itertools.islice(itertools.cycle(mixed), math.prod(shape)))
    kind = torch.float64 if rows.is_floating_point() else rows.dtype
    values = torch.tensor(taken, dtype=kind).to(rows.dtype).reshape(shape)
    if count == _SOME:
        rows[picked] = values[:, 0]
    elif count:
        rows.scatter_(1, places, values)
    else:
        rows.copy_(values.expand_as(rows))


def step_bits(values: torch.Tensor, steps: torch.Tensor | int) -> torch.Tensor:
    """Floats moved away from 0 by so many units in their last places (negative: towards it).

    0, infinities and NaN stay; the largest number becomes an infinity.
    """
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    moved = (values.view(integer) + steps).view(values.dtype)
    return torch.where((values == 0) | ~values.isfinite(), values, moved)


def _both(values: Sequence[float]) -> list[float]:
    return [*values, *(-value for value in values)]
