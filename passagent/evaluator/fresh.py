"""Fresh values for every call: each input's values lie in a reservoir, and a call sees a window of it.

The reservoir is the drawn tensor, flattened, followed by more of the same draw, so that what does not depend
on the order of the values (their sum) is another in each window too. A recorded tensor is followed by its own
beginning: a window that starts later is the tensor rotated. One copy puts a window behind the address that
the candidate was given. So no timed call sees values that another one saw, and results kept from an earlier
call are wrong, whatever they are kept by.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from passagent.tasks.inputs import is_endless, more_values, shift_unit
from passagent.tasks.meta import TensorMeta
from passagent.tasks.reader import Subgraph

MAX_WINDOWS = 4096
"""Of a reservoir, at most: more than calls are made."""
MORE = 1 << 18
"""Elements that a reservoir may hold beyond its tensor's, or as many as that one has."""

Windows = list[int]
"""For each input of a subgraph the element at which its window starts."""


@dataclass(frozen=True)
class Rotation:
    """How windows on the inputs of a subgraph may move: they start at multiples of units[i]."""

    metas: tuple[TensorMeta, ...]
    units: tuple[int, ...]
    counts: tuple[int, ...]
    """Windows of each reservoir, at least 1."""

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
        return cls(subgraph.inputs, units, counts)

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
        self._left: list[list[int]] = [[] for _ in rotation.units]

    def next(self) -> Windows:
        """The windows of one more call."""
        windows = []
        for unit, count, left in zip(self._rotation.units, self._rotation.counts, self._left, strict=True):
            if not left:
                left.extend(self._random.permutation(count).tolist())
            windows.append(left.pop() * unit)
        return windows


Refresh = Callable[[Sequence[int]], None]


def refresher(
    live: list[Any], reservoirs: list[Any], which: Sequence[int], one_thread: bool = False
) -> Refresh:
    """A function that copies windows of `reservoirs` (flat, on the device) into the tensors `live`.

    `which`: positions of the inputs that it refreshes. On a GPU tensors of one dtype take one launch; on the
    CPU all threads take part, or `one_thread`, which waits for no other.
    """
    tensors = [i for i in which if isinstance(live[i], torch.Tensor) and live[i].numel()]
    targets = {i: live[i].reshape(-1) for i in tensors}
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i in tensors:
        groups.setdefault((live[i].dtype, live[i].device), []).append(i)
    plans = [(members, [targets[i] for i in members]) for members in groups.values()]

    def refresh(windows: Sequence[int]) -> None:
        for members, into in plans:
            values = [
                reservoirs[i].narrow(0, windows[i], target.numel())
                for i, target in zip(members, into, strict=True)
            ]
            if one_thread:
                for target, value in zip(into, values, strict=True):
                    ctypes.memmove(target.data_ptr(), value.data_ptr(), target.nbytes)
            else:
                torch._foreach_copy_(into, values)

    return refresh
