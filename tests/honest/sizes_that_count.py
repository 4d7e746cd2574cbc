# expect: ok
"""Counts with objects that are numbers of blocks, and finds the best of them by habits of Python's library."""

import heapq
from collections import Counter, deque
from operator import methodcaller

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


class Blocks:
    warps = 4

    def __init__(self, width: int):
        self.width = width

    def __mul__(self, times: int) -> "Blocks":
        return Blocks(self.width * times)

    __rmul__ = __mul__

    def __floordiv__(self, parts: int) -> "Blocks":
        return Blocks(max(1, self.width // parts))

    def __int__(self) -> int:
        return self.width

    def options(self):
        return {"num_warps": self.warps}


class Wide(Blocks):
    warps = 8

    def options(self):
        return {**super().options(), "num_stages": 2}


class Plans:
    def __init__(self):
        self._widths = {}

    def __setitem__(self, numel, width):
        self._widths[numel] = width

    def __getitem__(self, numel):
        return self._widths.get(numel, 64)


PLANS = Plans()
PLANS[256] = 128
WASTE = Counter({64: 2, 128: 1})
QUEUE = deque(heapq.nsmallest(2, [(512, Wide), (128, Blocks)], key=lambda one: one[0]))


def fused(x, y):
    out, x, y = map(methodcaller("contiguous"), (torch.empty_like(x), x, y))
    n = out.numel()
    width, kind = QUEUE[0]
    width = min(width, PLANS[n], WASTE.most_common(1)[0][0] * 2)
    blocks = (2 * kind(width)) // 2
    _kernel[(triton.cdiv(n, int(blocks)),)](x, y, out, n, BLOCK=int(blocks), **Wide(1).options())
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
