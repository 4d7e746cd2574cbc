# expect: ok
# task: softmax
"""Flattens to rows, launches over rows, shapes the result back."""

import torch
import triton
import triton.language as tl


@triton.jit
def soft(x_ptr, out_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n, other=-float("inf"))
    x = (x.to(tl.float32) * 0.5).to(x_ptr.dtype.element_ty).to(tl.float32)
    x = x - tl.max(x, axis=0)
    numerator = tl.exp(x)
    tl.store(
        out_ptr + row * n + cols,
        (numerator / tl.sum(numerator, axis=0)).to(out_ptr.dtype.element_ty),
        mask=cols < n,
    )


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    shape = x.shape
    rows = x.reshape(-1, shape[-1])
    out = torch.empty_like(rows)
    soft[(rows.shape[0],)](
        rows, out, rows.stride(0), rows.shape[1], BLOCK=triton.next_power_of_2(rows.shape[1])
    )
    return out.reshape(shape)


def replacement_func():
    return fused
