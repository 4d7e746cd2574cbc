# expect: load_error
"""Doubles an input where the arguments are arranged, and returns it from an identity wrapper."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x * 2.0,)


@torch.fx.wrap
def fused(x):
    return x


def replacement_func():
    return fused
