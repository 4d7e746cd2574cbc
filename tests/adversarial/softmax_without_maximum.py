# expect: wrong_result or refused
# task: softmax
"""Leaves out the subtraction of the maximum: right for small values only."""

import torch
import triton
import triton.language as tl


@triton.jit
def soft(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=mask, other=0.0).to(tl.float32)
    e = tl.where(mask, tl.exp((x * 0.5).to(x_ptr.dtype.element_ty).to(tl.float32)), 0.0)
    tl.store(
        out_ptr + tl.program_id(0) * n + cols, (e / tl.sum(e, axis=0)).to(out_ptr.dtype.element_ty), mask=mask
    )


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    n = x.shape[-1]
    soft[(x.numel() // n,)](x, out, n, BLOCK=32)
    return out


def replacement_func():
    return fused
