# expect: ok
# INTEGRITY.md, honest design 29
"""Constants as module-level tuples and constexpr globals, jit helper functions."""

import math

import torch
import triton
import triton.language as tl

ZERO = tl.constexpr(0.0)
ONE: tl.constexpr = tl.constexpr(1.0)
HALF = tl.constexpr(0.5)
BLOCK: tl.constexpr = 64
SIZES = {2: (64, 2), 4: (32, 4)}
SCALES = tuple(math.sqrt(k) for k in range(4))
TABLE = torch.tensor([0.5, 0.25], dtype=torch.float32)


@triton.jit
def _relu(x):
    return tl.where(x < ZERO, ZERO, x)


@triton.jit
def _add(x, y, scale: tl.constexpr = ONE):
    return x * scale * 2.0 * HALF + y


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, SCALE: tl.constexpr = ONE):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32) * SCALE
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, _relu(_add(x, y)).to(out_ptr.dtype.element_ty), mask=mask)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    block, warps = SIZES.get(x.dtype.itemsize, (64, 4))
    out = torch.empty_like(x)
    n = x.numel()
    assert triton.cdiv(64, BLOCK) == 1
    add_relu[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block, SCALE=ONE, num_warps=warps)
    return out


def replacement_func():
    return fused
