# expect: ok
# INTEGRITY.md, honest design 14
"""Launch plans in an lru_cache, keyed by sizes and a dtype."""

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, tl.maximum(x + y, 0.0).to(out_ptr.dtype.element_ty), mask=mask)


@functools.lru_cache(maxsize=None)
def plan(n, dtype):
    """Block, grid and warps for n elements."""
    block = 64 if dtype.itemsize == 2 else 128
    return block, (triton.cdiv(n, block),), 4 if n > 4096 else 2


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    block, grid, warps = plan(x.numel(), x.dtype)
    out = torch.empty_like(x)
    add_relu[grid](x, y, out, x.numel(), BLOCK=block, num_warps=warps)
    return out


def replacement_func():
    return fused
