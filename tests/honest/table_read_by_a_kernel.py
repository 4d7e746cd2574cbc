# expect: ok
# task: gather_table
# INTEGRITY.md, honest design 29
"""A small table of literals, given to the kernel as a tensor."""

import torch
import triton
import triton.language as tl

WEIGHTS = torch.tensor([0.5, 0.5])


@triton.jit
def weighted(x_ptr, weights_ptr, out_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    left = tl.load(x_ptr + row * 2 * BLOCK + 2 * cols) * tl.load(weights_ptr)
    right = tl.load(x_ptr + row * 2 * BLOCK + 2 * cols + 1) * tl.load(weights_ptr + 1)
    tl.store(out_ptr + row * BLOCK + cols, left + right)


def pattern(x):
    return torch.nn.functional.avg_pool1d(x.reshape(8, 8), 2)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((8, 4), dtype=x.dtype, device=x.device)
    weighted[(8,)](x, WEIGHTS.to(x.device), out, BLOCK=4)
    return out


def replacement_func():
    return fused
