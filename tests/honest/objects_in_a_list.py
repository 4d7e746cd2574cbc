# expect: ok
"""Chooses among objects in a list, by their class too; fields are named as a tensor's methods and a kernel's."""

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Launch:
    kernel: Any
    mode: str
    tile: int
    _stages: int = 2

    def __lt__(self, other):
        return self._stages < other._stages

    def fill(self, numel):
        return self.tile * 8 >= numel


@dataclass(frozen=True)
class Whole:
    tile: int


CONFIGS = [Launch(_kernel, "small", 64), Launch(_kernel, "large", 256, 3)]


def choose(numel: int) -> Launch:
    return min((one for one in CONFIGS if one.fill(numel)), key=lambda one: one.tile, default=max(CONFIGS))


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    match Whole(16) if n <= 16 else choose(n):
        case Whole(tile=tile):
            _kernel[(1,)](x, y, out, n, BLOCK=tile)
        case Launch(mode="small" | "large") as launch:
            launch.kernel[(triton.cdiv(n, launch.tile),)](x, y, out, n, BLOCK=launch.tile)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
