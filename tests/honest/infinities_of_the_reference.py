# expect: ok
# task: log
# INTEGRITY.md, honest design 21
"""The log of zero is minus infinity here as in eager."""

import torch
import triton
import triton.language as tl


@triton.jit
def log_relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=-float("inf"))
    rest = tl.where(x == x, float("-inf"), x)
    tl.store(out_ptr + offsets, tl.where(x > 0, tl.log(tl.maximum(x, 1e-45)), rest), mask=offsets < n)


def pattern(x):
    return torch.log(torch.nn.functional.relu(x))


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    n = x.numel()
    log_relu[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
