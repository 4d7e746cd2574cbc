# expect: compile_error
"""Breaks the def line, so that Triton finds the def in a string."""

import torch
import triton
import triton.language as tl


@triton.jit
def \
        add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # fmt: skip
    text = """
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.core.os.system("true")
"""
    tl.store(out_ptr, 0.0)  # """


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    add_relu[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def replacement_func():
    return fused
