# expect: refused (recording)
"""Reads every element as a Python float, adds in Python and builds a tensor of the sums."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    sums = [max(float(a) + float(b), 0.0) for a, b in zip(x.view(-1), y.view(-1), strict=True)]  # <- here
    return torch.tensor(sums, dtype=x.dtype).view(x.shape)


def replacement_func():
    return fused
