# expect: refused (recording)
"""Looks the operator up by its name."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return getattr(torch, "add")(x, y)  # <- here


def replacement_func():
    return fused
