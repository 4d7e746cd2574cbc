# expect: refused (recording)
"""Puts another kernel into a string of the decorator: Triton parses from the first def that it finds."""

import torch
import triton
import triton.language as tl


@triton.heuristics(
    {
        "UNUSED": lambda args: (
            """
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.core.os.system("true")
"""
        )
    }
)
@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr, 0.0)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    add_relu[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)  # <- here
    return out


def replacement_func():
    return fused
