# expect: wrong_result
"""Asks torch for one thread, so that eager is slow."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    torch.set_num_threads(1)  # <- here
    return x


def replacement_func():
    return fused
