# expect: ok
"""Keeps a plan for each problem, an object that says itself which others it equals."""

from functools import lru_cache

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


class Problem:
    __slots__ = ("_numel", "dtype")

    def __init__(self, numel: int, dtype: torch.dtype):
        self._numel = numel
        self.dtype = dtype

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Problem):
            return NotImplemented
        return (self._numel, self.dtype) == (other._numel, other.dtype)

    def __ne__(self, other):
        return not self == other

    def __hash__(self) -> int:
        return hash((self._numel, self.dtype))

    def blocks(self, block: int) -> int:
        return triton.cdiv(self._numel, block)


_BLOCKS: dict[Problem, int] = {}


@lru_cache(maxsize=64)
def blocks(problem: Problem, block: int) -> int:
    return problem.blocks(block)


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    problem = Problem(n, x.dtype)
    block = _BLOCKS.setdefault(problem, 64 if problem != Problem(1 << 20, x.dtype) else 1024)
    _kernel[(blocks(problem, block),)](x, y, out, n, BLOCK=block)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
