# expect: refused (host_method)
"""Takes a bound method as a value and calls it later."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    plus = x.add  # <- here
    return plus(y)


def replacement_func():
    return fused
