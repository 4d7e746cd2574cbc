# expect: refused (recording)
# task: mask
"""Converts with .to(dtype): the arithmetic of the mask."""

import torch


def pattern(x):
    kept = x.to(torch.float32)
    return (1.0 - kept) * -10000.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return x.to(torch.float32)  # <- here


def replacement_func():
    return fused
