# expect: ok
# task: broadcast
# INTEGRITY.md, honest design 17
"""Expands inputs to one shape: strides of zero, read by stride."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_mul(x_ptr, y_ptr, z_ptr, out_ptr, cols, x0, x1, y0, y1, z0, z1, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    mask = col < cols
    x = tl.load(x_ptr + row * x0 + col * x1, mask=mask)
    y = tl.load(y_ptr + row * y0 + col * y1, mask=mask)
    z = tl.load(z_ptr + row * z0 + col * z1, mask=mask)
    tl.store(out_ptr + row * cols + col, (x + y) * z, mask=mask)


def pattern(x, y, z):
    total = x + y
    return total * z


def replacement_args(x, y, z):
    return (x, y, z)


@torch.fx.wrap
def fused(x, y, z):
    y = y.expand(x.shape)
    z = z.expand_as(x)
    out = torch.empty_like(x)
    rows, cols = x.shape
    add_mul[(rows,)](
        x,
        y,
        z,
        out,
        cols,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        z.stride(0),
        z.stride(1),
        BLOCK=32,
    )
    return out


def replacement_func():
    return fused
