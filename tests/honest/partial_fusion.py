# expect: ok
# task: partial
# INTEGRITY.md, honest design 12
"""Fuses the tail; the matrix product stays eager."""

import torch
import triton
import triton.language as tl


@triton.jit
def bias_relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(
        out_ptr + offsets,
        tl.maximum(tl.load(x_ptr + offsets, mask=mask) + 1.0, 0.0, propagate_nan=tl.PropagateNan.ALL),
        mask=mask,
    )


def pattern(x):
    return torch.nn.functional.relu(x + 1.0)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    n = x.numel()
    bias_relu[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
