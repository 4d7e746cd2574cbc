# expect: ok
# task: mean
"""Reduces with a combine function of its own."""

import torch
import triton
import triton.language as tl


@triton.jit
def _plus(a, b):
    return a + b


@triton.jit
def mean_square(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=cols < n, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.reduce(x * x, 0, _plus) / n)


def pattern(x):
    squares = x * x
    return squares.mean(-1, keepdim=True)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    rows, n = x.shape
    out = torch.empty((rows, 1), dtype=x.dtype, device=x.device)
    mean_square[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n))
    return out


def replacement_func():
    return fused
