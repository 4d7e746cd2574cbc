# expect: ok
# task: sum_all
# INTEGRITY.md, honest design 5, 6
"""A sum over blocks by atomics into zeros."""

import torch
import triton
import triton.language as tl


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x * 2.0, axis=0), sem="relaxed")


def pattern(x):
    doubled = x * 2.0
    return doubled.sum()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.zeros((), dtype=torch.float32, device=x.device)
    n = x.numel()
    total[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
