# expect: ok
# task: zeros
# INTEGRITY.md, honest design 25
"""The output depends on the shape only; a kernel writes it."""

import torch
import triton
import triton.language as tl


@triton.jit
def fill(out_ptr, n, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.full((BLOCK,), VALUE, tl.float32), mask=offsets < n)


def pattern(x):
    return torch.zeros_like(x) - 1.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    n = x.numel()
    fill[(triton.cdiv(n, 64),)](out, n, VALUE=-1.0, BLOCK=64)
    return out


def replacement_func():
    return fused
