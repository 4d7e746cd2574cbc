# expect: ok
# task: zeros
# INTEGRITY.md, honest design 25
"""The output depends on the shape only."""

import torch


def pattern(x):
    return torch.zeros_like(x) - 1.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return torch.full_like(x, -1.0)


def replacement_func():
    return fused
