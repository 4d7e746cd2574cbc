# expect: ok
"""A match statement, `type(x).__name__` in errors, annotations of collections.abc, version strings, itertools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Mapping

RECENT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 0)
assert torch.__version__ >= "2"
Grid = Callable[[dict], tuple[int, ...]]


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask).to(tl.float32) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.where(total < 0, 0.0, total), mask=mask)


def _grid(n: int) -> Grid:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def _block(shape: Sequence[int], dtype: torch.dtype, limits: Mapping[str, int] | None = None) -> int:
    match (len(shape), dtype):
        case (2, torch.float32):
            return 32
        case (int(), _) if RECENT:
            return 64
    match limits or {}:
        case {"least": least, **rest}:
            return max(least, *rest.values())
        case _:
            return 128


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, torch.Tensor) or type(x).__name__ != type(y).__name__:
        raise TypeError(f"expected two tensors, got {type(x).__name__} and {type(y).__name__}")
    x, y = torch.broadcast_tensors(x, y)
    n = list(itertools.accumulate(x.shape, lambda a, b: a * b))[-1]
    assert n == math.prod(itertools.chain.from_iterable([x.shape]))
    out = x.new_empty(x.shape)
    with torch.cuda.device_of(x):
        add_relu[_grid(n)](x.ravel(), y.ravel(), out, n, BLOCK=_block(x.shape, x.dtype))
    return out


def replacement_func():
    return fused
