# expect: wrong_result or refused
"""Launches a kernel that stores nothing."""

import torch
import triton
import triton.language as tl


@triton.jit
def empty(x_ptr, out_ptr, BLOCK: tl.constexpr):
    tl.load(x_ptr + tl.arange(0, BLOCK))


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    empty[(1,)](x, out, BLOCK=16)
    return out


def replacement_func():
    return fused
