# expect: ok
# task: transpose_copy
# INTEGRITY.md, honest design 11
"""A transposition: bitwise equal."""

import torch
import triton
import triton.language as tl


@triton.jit
def transposed(x_ptr, out_ptr, rows, stride_row, stride_col, BLOCK: tl.constexpr):
    col = tl.program_id(0)
    row = tl.arange(0, BLOCK)
    mask = row < rows
    x = tl.load(x_ptr + row * stride_row + col * stride_col, mask=mask)
    tl.store(out_ptr + col * rows + row, x, mask=mask)


def pattern(x):
    return x.transpose(0, 1).contiguous()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    rows, cols = x.shape
    out = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    transposed[(cols,)](x, out, rows, x.stride(0), x.stride(1), BLOCK=triton.next_power_of_2(rows))
    return out


def replacement_func():
    return fused
