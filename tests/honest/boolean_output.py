# expect: ok
# task: greater
# INTEGRITY.md, honest design 22
"""A comparison: the output is boolean."""

import torch
import triton
import triton.language as tl


@triton.jit
def greater(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * 2.0 > y, mask=mask)


def pattern(x, y):
    doubled = x * 2.0
    return doubled > y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    n = x.numel()
    greater[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
