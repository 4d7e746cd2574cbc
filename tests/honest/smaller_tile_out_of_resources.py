# expect: ok
"""Tries the big tile and falls back to a small one when the device lacks the resources."""

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = (x + y).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, tl.where(total < 0, 0.0, total), mask=mask)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    try:
        add_relu[(triton.cdiv(n, 128),)](x, y, out, n, BLOCK=128, num_warps=8)
    except OutOfResources:
        add_relu[(triton.cdiv(n, 32),)](x, y, out, n, BLOCK=32, num_warps=1)
    return out


def replacement_func():
    return fused
