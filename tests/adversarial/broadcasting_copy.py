# expect: refused (recording)
# task: shape_only
"""Broadcasts a row over a matrix with copy_."""

import torch


def pattern(x, y):
    return torch.zeros_like(x) + y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    out.copy_(y)  # <- here
    return out


def replacement_func():
    return fused
