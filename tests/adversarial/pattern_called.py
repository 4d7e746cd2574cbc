# expect: refused (recording)
"""Calls its own pattern, which is torch code."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)  # <- here


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return pattern(x, y)


def replacement_func():
    return fused
