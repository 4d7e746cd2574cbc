# expect: refused (recording)
"""Takes a bound method as a value and calls it later."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    plus = x.add
    return plus(y)  # <- here


def replacement_func():
    return fused
