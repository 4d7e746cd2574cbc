"""Large tensors in pieces: what is computed of one stays in a core's caches, and cores share them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

PART = 1 << 19
"""Elements that a thread takes at a time, of tensors that are larger."""
CHUNK = 1 << 17
"""Elements that are looked at together, at most: with fewer, threads mostly wait for Python's lock."""
_FEW_CORES = 4
"""With more cores the referee leaves half to the workers: calls may be timed meanwhile."""
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their bytes."""

T = TypeVar("T")


def each_part(work: Callable[..., T], *tensors: torch.Tensor) -> list[T]:
    """Apply `work(first element, *part)` to each part of flat tensors of one size; the results in order."""
    starts = range(0, max(1, tensors[0].numel()), PART)
    parts = zip(starts, *(tensor.split(PART) for tensor in tensors), strict=True)
    return in_threads(work, list(parts))


def in_threads(work: Callable[..., T], parts: Sequence[tuple[Any, ...]]) -> list[T]:
    """Call `work(*part)` for each part, on several cores if there are several parts; results in order."""
    if len(parts) == 1:
        return [work(*parts[0])]
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(min(max(1, len(parts)), max(cores // 2, min(cores, _FEW_CORES)))) as pool:
        return list(pool.map(lambda part: work(*part), parts))


def equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether dtypes, shapes and all values are the same, with no NaN among them."""
    if tensor.dtype != other.dtype or tensor.shape != other.shape:
        return False
    return all(each_part(lambda _, a, b: torch.equal(a, b), tensor.reshape(-1), other.reshape(-1)))


def same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether contiguous tensors of one shape and dtype have the same bits, those of NaN included."""
    whole = _WHOLE.get(tensor.element_size())
    return whole is not None and torch.equal(tensor.view(whole), other.view(whole))


def copy(into: torch.Tensor, values: torch.Tensor) -> None:
    """Copy flat `values` into a flat tensor of their size and dtype."""
    each_part(lambda _, a, b: a.copy_(b), into, values)


def chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Flat tensors of one size, in chunks."""
    return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)


def scratch(count: int, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`count` rows for what is computed from a chunk of `tensor`, used again for each."""
    return torch.empty(count, min(tensor.numel(), CHUNK), dtype=dtype)
