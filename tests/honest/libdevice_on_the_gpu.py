# expect: ok
# task: two_regions
# gpu
"""Calls libdevice's tanh."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def tanh(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, libdevice.tanh(x * 2.0), mask=offsets < n)


def pattern(x):
    return torch.tanh(x * 2.0)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    n = x.numel()
    out = torch.empty_like(x)
    tanh[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
