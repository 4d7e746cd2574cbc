# expect: refused (recording)
# task: mask
"""Converts with .to(other), which names no dtype."""

import torch


def pattern(x):
    kept = x.to(torch.float32)
    return (1.0 - kept) * -10000.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    scale = torch.ones(1, dtype=torch.float32)
    return x.to(scale)  # <- here


def replacement_func():
    return fused
