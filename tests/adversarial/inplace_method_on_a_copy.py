# expect: refused (recording)
"""Clones an input and adds to the clone in place."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = x.clone()
    out.add_(y)  # <- here
    return out


def replacement_func():
    return fused
