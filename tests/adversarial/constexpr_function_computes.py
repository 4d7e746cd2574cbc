# expect: refused (recording)
"""Adds in a function that is meant for what is known when a kernel is compiled."""

import torch
import triton


@triton.constexpr_function
def added(x, y):
    return x + y  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return added(x, y)


def replacement_func():
    return fused
