# expect: refused (recording)
"""Casts by the method type."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x.type(torch.float64)  # <- here


def replacement_func():
    return fused
