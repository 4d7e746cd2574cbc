# expect: refused (recording)
"""Compares one-element tensors with Python's max."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return max(x.view(-1)[0:1], y.view(-1)[0:1])  # <- here


def replacement_func():
    return fused
