# expect: compile_error
"""Hands a tensor to the kernel as a compile-time constant and computes with it there."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, T: tl.constexpr):
    total = T + T
    tl.store(out_ptr, float(total.value.view(-1)[0]))


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    add_relu[(1,)](x, y, out, T=x)
    return out


def replacement_func():
    return fused
