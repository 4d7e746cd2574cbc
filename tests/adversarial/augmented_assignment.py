# expect: refused (recording)
"""Adds in place by augmented assignment to a copy."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = x.clone()
    out += y  # <- here
    return out


def replacement_func():
    return fused
