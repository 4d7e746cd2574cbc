# expect: ok
# task: softmax
"""A softmax over blocks of columns, with running maximum and sum."""

import torch
import triton
import triton.language as tl


@triton.jit
def scaled(x_ptr, offsets, mask):
    x = tl.load(x_ptr + offsets, mask=mask, other=-float("inf"))
    return (x.to(tl.float32) * 0.5).to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def soft(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    top = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = scaled(x_ptr, row + cols, cols < n)
        new = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), axis=0)
        top = new
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = scaled(x_ptr, row + cols, cols < n)
        tl.store(out_ptr + row + cols, (tl.exp(x - top) / total).to(out_ptr.dtype.element_ty), mask=cols < n)


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    n = x.shape[-1]
    out = torch.empty_like(x)
    soft[(x.numel() // n,)](x, out, n, BLOCK=8)
    return out


def replacement_func():
    return fused
