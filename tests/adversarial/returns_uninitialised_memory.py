# expect: wrong_result or refused
"""Returns memory that may hold the freed reference."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.empty_like(x)


def replacement_func():
    return fused
