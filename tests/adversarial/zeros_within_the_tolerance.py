# expect: refused or wrong_result
# task: tiny_values
"""Returns zeros where every value is smaller than the absolute tolerance."""

import torch


def pattern(x):
    return torch.nn.functional.relu(x * 1e-07)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return torch.zeros_like(x)


def replacement_func():
    return fused
