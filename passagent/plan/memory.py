"""Where the values of a plan lie in memory, in bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from passagent.plan.model import Plan
from passagent.plan.values import Value, ViewValue


class Place(NamedTuple):
    """The memory of a value: a value with memory of its own, and bytes from its start to the element."""

    base: int
    offset: int


def dtype_of(value: Value) -> torch.dtype:
    """The value's torch dtype."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    return dtype


def span(value: Value) -> int:
    """Bytes from the first element to the end of the last; 0 for a value without elements."""
    if 0 in value.shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride, strict=True))
    return (last + 1) * dtype_of(value).itemsize


def steps(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The strides that count: where a dimension has several elements; none where there are no elements."""
    return [step for size, step in zip(shape, stride, strict=True) if size > 1 and 0 not in shape]


def place(plan: Plan, number: int) -> Place:
    """Where a value lies."""
    value = plan.values[number]
    if isinstance(value, ViewValue):
        return Place(value.of, value.offset * dtype_of(value).itemsize)
    return Place(number, 0)


def overlaps_itself(value: Value) -> bool:
    """Tell whether two elements of a value may lie in the same memory."""
    step = 0
    for size, stride in sorted(zip(value.shape, value.stride, strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride <= step:
                return span(value) > 0
            step += (size - 1) * stride
    return False


def is_dense(value: Value) -> bool:
    """Tell whether its elements fill its span: without gaps, in some order of the dimensions."""
    return math.prod(value.shape) * dtype_of(value).itemsize == span(value) and not overlaps_itself(value)


def look(base: torch.Tensor, view: tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]) -> torch.Tensor:
    """The tensor of a dtype, shape and strides that starts some bytes behind the start of `base`."""
    dtype, shape, stride, offset = view
    begin = base.storage_offset() * base.itemsize + offset
    if dtype == base.dtype:
        return base.as_strided(shape, stride, begin // dtype.itemsize)
    with torch.no_grad():
        tensor = torch.empty(0, dtype=dtype, device=base.device)
        return tensor.set_(base.untyped_storage(), begin // dtype.itemsize, shape, stride)
