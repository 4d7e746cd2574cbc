# expect: wrong_result
"""Replaces a kernel by a decorator of its own: what looks like a launch calls host code."""

import torch
import triton
import triton.language as tl


def swap(kernel):
    return {(1,): first}


def first(x, y, out):
    return x


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@swap  # <- here
@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr) + tl.load(y_ptr))


@torch.fx.wrap
def fused(x, y):
    return add_relu[(1,)](x, y, torch.empty_like(x))


def replacement_func():
    return fused
