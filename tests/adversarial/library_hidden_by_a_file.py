# expect: wrong_result
"""Ships a file named like a library's module."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
