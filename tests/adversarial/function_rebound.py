# expect: refused (recording)
"""Defines an honest wrapper and assigns another over it."""

import torch


def helper(x, y):
    return x


helper = max


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return helper(x, y)  # <- here


def replacement_func():
    return fused
