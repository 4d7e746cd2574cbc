# expect: ok
# task: mean
# INTEGRITY.md, honest design 4, 28
"""Two kernels with a workspace between them that is larger than what is written."""

import torch
import triton
import triton.language as tl


@triton.jit
def partial_sums(x_ptr, partial_ptr, n, stride, BLOCK: tl.constexpr):
    row, chunk = tl.program_id(0), tl.program_id(1)
    cols = chunk * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    tl.store(partial_ptr + row * stride + chunk, tl.sum(x * x, axis=0))


@triton.jit
def finish(partial_ptr, out_ptr, chunks, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    sums = tl.load(partial_ptr + row * stride + cols, mask=cols < chunks, other=0.0)
    tl.store(out_ptr + row, tl.sum(sums, axis=0) / n)


def pattern(x):
    squares = x * x
    return squares.mean(-1, keepdim=True)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    rows, n = x.shape
    partial = torch.empty((rows, 8), dtype=torch.float32, device=x.device)
    out = torch.empty((rows, 1), dtype=x.dtype, device=x.device)
    chunks = triton.cdiv(n, 16)
    partial_sums[(rows, chunks)](x, partial, n, partial.stride(0), BLOCK=16)
    finish[(rows,)](partial, out, chunks, n, partial.stride(0), BLOCK=8)
    return out


def replacement_func():
    return fused
