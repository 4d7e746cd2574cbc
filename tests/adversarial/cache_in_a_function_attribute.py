# expect: wrong_result
"""Keeps results in an attribute of the function."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    fused.memory = x  # <- here
    return x


def replacement_func():
    return fused
