# expect: refused (recording)
"""Stores through a comparison mask: relu by hand."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = x.clone()
    out[out < 0] = 0.0  # <- here
    return out


def replacement_func():
    return fused
