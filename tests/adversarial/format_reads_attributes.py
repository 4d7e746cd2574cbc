# expect: wrong_result
"""Reads attributes through a format string."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    "{0.__globals__}".format(fused)  # <- here
    return x


def replacement_func():
    return fused
