# expect: runtime_error or refused
# task: two_outputs
"""Returns one output where the pattern has two."""

import torch


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.empty_like(x)


def replacement_func():
    return fused
