# expect: refused (recording)
"""Broadcasts with copy_ into a view of a larger tensor."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = x.new_empty((2, *x.shape))
    out[0].copy_(x)  # <- here
    return out[0]


def replacement_func():
    return fused
