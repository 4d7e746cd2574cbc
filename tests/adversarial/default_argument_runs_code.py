# expect: refused (recording)
"""Computes in a default argument."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(
    x,
    y,
    table=torch.randn(4),
):
    return table


def replacement_func():
    return fused
