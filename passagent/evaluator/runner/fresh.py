"""Fresh values for every call: each input's values lie in a reservoir, and a call sees a window of it.

The reservoir is the drawn tensor, flattened, followed by more of the same draw, so that what does not
depend on the order of the values (their sum) is another in each window too. A recorded tensor is followed
by its own beginning: a window that starts later is the tensor rotated. One copy puts a window behind the
address that the candidate was given. As windows overlap, what was kept of single elements would only have
to be moved along; so those of drawn floats are mixed with another window's, at a distance that no other
call has. So no timed call sees values that another one saw, and results kept from an earlier call are
wrong, whatever they are kept by.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from passagent.sandbox.unseen import Filling, Reservoir
from passagent.tasks.inputs import is_endless, more_values, shift_unit
from passagent.tasks.meta import LIMIT, TensorMeta
from passagent.tasks.reader import Subgraph

MAX_WINDOWS = 4096
"""The most windows of a reservoir: more than calls are made."""
MORE = 1 << 18
"""Elements that a reservoir may hold beyond its tensor's, or as many as that one has."""

MIX = 1 / 16
"""The share of a mixed window that comes from another one: a power of two, for equal rounding."""
_MIXED = {"float16", "bfloat16", "float32", "float64"}
_BESIDE = 1 << 32
PIECE = 1 << 24
"""Elements that are compared at a time."""

Windows = list[int]
"""For each input of a subgraph the element at which its window starts, and _BESIDE times 1 + the one at which
the window starts that is mixed in, if one is."""


@dataclass(frozen=True)
class Rotation:
    """How windows on the inputs of a subgraph may move: they start at multiples of units[i]."""

    metas: tuple[TensorMeta, ...]
    units: tuple[int, ...]
    counts: tuple[int, ...]
    """Windows of each reservoir, at least 1."""
    mixed: tuple[bool, ...]
    """Inputs whose windows are mixed."""

    @classmethod
    def of(cls, subgraph: Subgraph) -> Rotation:
        """The rotation that keeps the inputs of `subgraph` valid: a window is as good as the drawn values."""
        units = tuple(shift_unit(meta) for meta in subgraph.inputs)
        counts = tuple(
            max(1, min(MAX_WINDOWS, (max(MORE, meta.numel) if is_endless(meta) else meta.numel) // unit))
            if unit
            else 1
            for meta, unit in zip(subgraph.inputs, units, strict=True)
        )
        return cls(subgraph.inputs, units, counts, tuple(map(_may_mix, subgraph.inputs)))

    def reservoir(self, position: int, values: torch.Tensor, seed: int, variant: int) -> list[torch.Tensor]:
        """`values` of input `position`, flat, and so many more of `variant` that every window fits."""
        flat, count = values.reshape(-1), (self.counts[position] - 1) * self.units[position]
        endless = is_endless(self.metas[position])
        more = more_values(self.metas[position], count, seed, variant) if endless else flat[:count]
        return [flat, more]

    def first(self) -> Windows:
        """The windows that show the values as they were drawn."""
        return [0] * len(self.units)


class Draw:
    """Windows in an unpredictable order, none of an input's twice before all were used."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._random = np.random.default_rng(secrets.randbits(128))
        self._left = [np.empty(0, np.int64) for _ in rotation.units]

    def next(self) -> Windows:
        """The windows of one more call."""
        windows: Windows = self.several(1)[:, 0].tolist()
        return windows

    def several(self, calls: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The windows of so many more calls, (inputs, calls)."""
        rotation = self._rotation
        windows = np.empty((len(rotation.units), calls), np.int64)
        columns = zip(rotation.units, rotation.counts, rotation.mixed, strict=True)
        for i, (unit, count, mixed) in enumerate(columns):
            if (missing := calls - len(self._left[i])) > 0:
                more = [self._random.permutation(count) for _ in range(-(-missing // count))]
                self._left[i] = np.concatenate([self._left[i], *more])
            chosen, self._left[i] = np.split(self._left[i], [calls])
            # Mirrored, so that the distance of the two is another one for each window.
            windows[i] = chosen * unit + (_BESIDE * (count - chosen) if mixed and count > 1 else 0)
        return windows


def _may_mix(meta: TensorMeta) -> bool:
    """A mean of two values is one that could have been drawn, too."""
    far = abs(meta.mean or 0.0) + 100 * (meta.std or 0.0)
    return meta.dtype in _MIXED and is_endless(meta) and far < LIMIT


def window_of(reservoir: torch.Tensor, where: int, count: int) -> torch.Tensor:
    """The `count` values, flat, that a call sees of a reservoir."""
    first, other = _pair(reservoir, where, count)
    return first if other is None else torch.lerp(first, other, MIX)


def pieces_of(reservoir: torch.Tensor, where: int, count: int) -> Iterator[torch.Tensor]:
    """Yield a window PIECE by PIECE: mixed values of a large input take no lasting memory."""
    first, other = _pair(reservoir, where, count)
    others = first.split(PIECE) if other is None else other.split(PIECE)
    for piece, other_piece in zip(first.split(PIECE), others, strict=True):
        yield piece if other is None else torch.lerp(piece, other_piece, MIX)


def _pair(reservoir: torch.Tensor, where: int, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A window, and the one that is mixed in."""
    partner, start = divmod(where, _BESIDE)
    other = reservoir.narrow(0, partner - 1, count) if partner else None
    return reservoir.narrow(0, start, count), other


def _as_integers(values: torch.Tensor) -> torch.Tensor:
    """View the memory as integers: a GPU copies floats of 16 bits by way of float32, which rewrites NaN."""
    return values.view(_INTEGERS[values.itemsize]) if values.is_floating_point() else values


Refresh = Callable[[Sequence[int]], None]
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def refresher(live: list[Any], reservoirs: list[Any], which: Sequence[int]) -> Refresh:
    """A function that puts windows of `reservoirs` (flat, on the device) into the tensors `live`.

    `which`: positions of the inputs that it refreshes. On a GPU tensors of one dtype take one launch, and one
    more if they are mixed.
    """
    filled = [i for i in which if _is_filled(live[i])]
    flat = {i: live[i].reshape(-1) for i in filled}
    fillings = {
        i: Filling(target, reservoirs[i], MIX)
        for i, target in flat.items()
        if isinstance(reservoirs[i], Reservoir)
    }
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i in flat.keys() - fillings.keys():
        groups.setdefault((live[i].dtype, live[i].device), []).append(i)
    plans = [(members, [flat[i] for i in members]) for members in groups.values()]
    bits = {i: _as_integers(target) for i, target in flat.items()}

    def refresh(windows: Sequence[int]) -> None:
        for i, filling in fillings.items():
            partner, start = divmod(windows[i], _BESIDE)
            filling.put(start, partner - 1 if partner else None)
        for members, into in plans:
            pairs = [_pair(reservoirs[i], windows[i], flat[i].numel()) for i in members]
            torch._foreach_copy_([bits[i] for i in members], [_as_integers(first) for first, _ in pairs])
            mixed = [target for target, (_, other) in zip(into, pairs, strict=True) if other is not None]
            if mixed:
                torch._foreach_lerp_(mixed, [other for _, other in pairs if other is not None], MIX)

    return refresh


class Slots:
    """Inputs of each of several calls that are made at once: `live`, and tensors like them."""

    def __init__(self, live: list[Any], count: int, draw: Draw) -> None:
        self.inputs, self._draw = [live, *(alike(live) for _ in range(count - 1))], draw

    def fill_alike(self, live: list[Any]) -> None:
        """Give every slot what the inputs `live` hold; they may be the first slot's."""
        for i, value in enumerate(live):
            if _is_filled(value):
                rest = [_as_integers(inputs[i]).reshape(-1) for inputs in self.inputs if inputs is not live]
                torch._foreach_copy_(rest, [_as_integers(value).reshape(-1)] * len(rest))

    def refresher(self, reservoirs: list[Any], which: Sequence[int]) -> Callable[[], None]:
        """A function that puts windows of their own into every slot's inputs `which`.

        An input takes two launches for all slots, and two more if it is mixed: a view of a reservoir has all
        its windows as rows, which overlap; those that are drawn are put in a row each, and copied from there.
        """
        live = self.inputs[0]
        refresh, filled = refresher(live, reservoirs, which), [i for i in which if _is_filled(live[i])]
        windows_of = {i: reservoirs[i].unfold(0, live[i].numel(), 1) for i in filled}
        shape = {i: (len(self.inputs) - 1, live[i].numel()) for i in filled}
        drawn = {i: torch.empty(shape[i], dtype=live[i].dtype, device=live[i].device) for i in filled}
        rest = {i: [_as_integers(inputs[i]).reshape(-1) for inputs in self.inputs[1:]] for i in filled}
        pairs = {i: (rest[i], list(_as_integers(drawn[i]).unbind())) for i in filled}

        def refresh_slots() -> None:
            windows = self._draw.several(len(self.inputs))
            refresh(windows[:, 0].tolist())
            partners, starts = np.divmod(windows[:, 1:], _BESIDE)
            for i, rows in drawn.items():
                first = torch.from_numpy(starts[i]).to(rows.device, non_blocking=True)
                torch.index_select(windows_of[i], 0, first, out=rows)
                if partners[i, 0]:
                    other = torch.from_numpy(partners[i] - 1).to(rows.device, non_blocking=True)
                    rows.lerp_(windows_of[i].index_select(0, other), MIX)
                torch._foreach_copy_(*pairs[i])

        return refresh_slots


def alike(inputs: list[Any]) -> list[Any]:
    """Tensors like those of `inputs`, in memory of their own; what else is in it as it is."""
    return [torch.empty_like(value) if isinstance(value, torch.Tensor) else value for value in inputs]


def _is_filled(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0
