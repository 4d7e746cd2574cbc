# expect: runtime_error
# task: two_outputs
"""A function of triton.language under a module's name, called with tensors: the interpreter runs it on torch."""

import torch
import triton.language as tl

sigmoid = tl.sigmoid


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x, sigmoid(x)  # <- here


def replacement_func():
    return fused
