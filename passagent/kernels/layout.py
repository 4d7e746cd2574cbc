"""How dense tensors lie in memory: the order of their dimensions there, outermost first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

Order = tuple[int, ...]
"""`(0, 2, 1)`: of three dimensions the middle one is innermost. Empty: row-major."""

LONGEST = 15
"""Dimensions that an order names, at most."""


class Like(NamedTuple):
    """The shape, dtype and order that a plan sees of a tensor and sets for an output."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: Order = ()

    def numel(self) -> int:
        """Elements."""
        return torch.Size(self.shape).numel()


def strides(shape: Sequence[int], order: Order = ()) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions have that order."""
    steps, step = [1] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        steps[dim] = step
        step *= max(shape[dim], 1)
    return tuple(steps)


def orders(name: str, named: Mapping[str, Iterable[int]] | None, parameters: Sequence[str]) -> list[Order]:
    """For each parameter its order. Raises TypeError for what is none."""
    by_name = {key: tuple(order) for key, order in (named or {}).items()}
    for key, order in by_name.items():
        if key not in parameters:
            raise TypeError(f"{name}: order names {key}; its parameters are {', '.join(parameters)}")
        if sorted(order) != list(range(len(order))) or len(order) > LONGEST:
            what = f"no permutation of up to {LONGEST} dimensions"
            raise TypeError(f"{name}: the order of {key} is {order}, {what}")
    return [by_name.get(parameter, ()) for parameter in parameters]


def seen(argument: Any, order: Order) -> Any:
    """An argument as a plan sees it."""
    if not isinstance(argument, torch.Tensor):
        return argument
    return Like(tuple(argument.shape), argument.dtype, order if len(order) == argument.dim() else ())


def laid(argument: Any, order: Order) -> Any:
    """An argument as a kernel reads it: a tensor that does not lie in that order as a copy that does."""
    if not isinstance(argument, torch.Tensor):
        return argument
    if len(order) != argument.dim():
        return argument.contiguous()
    turned = argument.permute(order)
    if turned.is_contiguous():
        return argument
    return turned.contiguous().permute([order.index(dim) for dim in range(len(order))])


def row_major(outputs: Any) -> Any:
    """Make outputs contiguous: those of a call whose inputs had to be copied."""
    if isinstance(outputs, tuple):
        return tuple(map(row_major, outputs))
    return outputs.contiguous() if isinstance(outputs, torch.Tensor) else outputs
