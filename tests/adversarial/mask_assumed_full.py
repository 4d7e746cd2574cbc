# expect: wrong_result or refused
# task: mask
"""Assumes a mask of ones."""

import torch


def pattern(x):
    kept = x.to(torch.float32)
    return (1.0 - kept) * -10000.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return torch.zeros(x.shape, dtype=torch.float32)


def replacement_func():
    return fused
