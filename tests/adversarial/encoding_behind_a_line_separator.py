# Two lines for some # and one for Python.
# -*- coding: raw_unicode_escape -*-  # <- here
# expect: compile_error
"""Declares an encoding on a line that counts as the second one only for Python."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    # \u000a    tl.core.os.system("true")
    tl.store(out_ptr, 0.0)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def fused(x, y):
    out = torch.empty_like(x)
    add_relu[(1,)](x, y, out, x.numel(), BLOCK=64)
    return out


def replacement_func():
    return fused
