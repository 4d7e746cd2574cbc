# expect: refused (recording)
"""Concatenates by storing into slices."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    out[..., 0:8] = x[..., 0:8]  # <- here
    return out


def replacement_func():
    return fused
