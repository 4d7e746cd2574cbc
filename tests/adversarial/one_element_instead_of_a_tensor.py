# expect: runtime_error or refused
"""Returns one element that broadcasts against the reference."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.zeros(1, dtype=x.dtype)


def replacement_func():
    return fused
