# expect: ok
# task: transposed_input
# INTEGRITY.md, honest design 9
"""Reads a transposed input by its strides and writes a contiguous output."""

import torch
import triton
import triton.language as tl


@triton.jit
def double_add(x_ptr, y_ptr, out_ptr, n, x_row, x_col, y_row, y_col, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * x_row + cols * x_col, mask=mask)
    y = tl.load(y_ptr + row * y_row + cols * y_col, mask=mask)
    tl.store(out_ptr + row * n + cols, x * 2.0 + y, mask=mask)


def pattern(x, y):
    return x * 2.0 + y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    rows, cols = x.shape
    out = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    double_add[(rows,)](
        x,
        y,
        out,
        cols,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        BLOCK=triton.next_power_of_2(cols),
    )
    return out


def replacement_func():
    return fused
