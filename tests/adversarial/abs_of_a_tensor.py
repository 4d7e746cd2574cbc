# expect: refused (recording)
"""Computes with abs."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return abs(x)  # <- here


def replacement_func():
    return fused
