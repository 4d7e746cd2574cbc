# expect: refused (recording)
"""Maps a lambda over the rows of both tensors."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    rows = list(map(lambda a, b: a - -b, x, y))  # <- here
    return rows[0]


def replacement_func():
    return fused
