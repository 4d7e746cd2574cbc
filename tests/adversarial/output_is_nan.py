# expect: wrong_result or refused
"""Returns NaN, which compares false with every tolerance."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.full_like(x, float("nan"))


def replacement_func():
    return fused
