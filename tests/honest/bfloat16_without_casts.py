# expect: ok
"""Adds, compares, negates and reduces bfloat16 as it is loaded: the GPU rounds after each operation, as eager does."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) - -tl.load(y_ptr + offsets, mask=mask)
    least, greatest = tl.min(total, axis=0), tl.max(total, axis=0)
    total = tl.where(total < least, least, tl.where(total > greatest, greatest, total))
    tl.store(out_ptr + offsets, tl.where(total < 0, 0.0, total).to(out_ptr.dtype.element_ty), mask=mask)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    add_relu[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def replacement_func():
    return fused
