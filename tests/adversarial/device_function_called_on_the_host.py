# expect: refused (computing_operator) or runtime_error
"""Calls a device function with tensors: the interpreter runs it as Python."""

import torch
import triton
import triton.language as tl


@triton.jit
def plus(x, y):
    return x + y  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return plus(x, y)


def replacement_func():
    return fused
