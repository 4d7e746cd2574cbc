# expect: wrong_result or refused
"""Returns zeros: right for half of the elements."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.zeros_like(x)


def replacement_func():
    return fused
