# expect: refused (recording)
"""Uses a tensor as an index of a Python sequence."""

import torch

TABLE = (0.0, 1.0)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    TABLE[x.view(-1).view(torch.int8)[0] :]  # <- here
    return y


def replacement_func():
    return fused
