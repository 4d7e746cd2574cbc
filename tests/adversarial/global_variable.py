# expect: wrong_result
"""Keeps results in a global variable."""

import torch

MEMORY = None


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    global MEMORY  # <- here
    MEMORY = x
    return x


def replacement_func():
    return fused
