# expect: runtime_error
"""Formats elements into text and parses the numbers again."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    first = float(f"{x.view(-1)[0]:.9f}")  # <- here
    return torch.full(x.shape, first, dtype=x.dtype)


def replacement_func():
    return fused
