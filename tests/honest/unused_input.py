# expect: ok
# task: shape_only
# INTEGRITY.md, honest design 26
"""One input gives nothing but its shape."""

import torch
import triton
import triton.language as tl


@triton.jit
def spread(y_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    mask = col < cols
    tl.store(out_ptr + tl.program_id(0) * cols + col, tl.load(y_ptr + col, mask=mask), mask=mask)


def pattern(x, y):
    return torch.zeros_like(x) + y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    rows, cols = x.shape
    spread[(rows,)](y, out, cols, BLOCK=triton.next_power_of_2(cols))
    return out


def replacement_func():
    return fused
