# expect: refused (recording)
"""Compares tensors in a chain."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    if 0.0 <= x.view(-1)[0] <= 1.0:  # <- here
        return y
    return x


def replacement_func():
    return fused
