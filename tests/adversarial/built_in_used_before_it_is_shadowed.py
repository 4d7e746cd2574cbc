# expect: wrong_result
"""Uses a built-in before its own function of the same name is defined."""

import torch

META = type(type(torch.empty_like))


def type(value):  # <- here
    return value


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
