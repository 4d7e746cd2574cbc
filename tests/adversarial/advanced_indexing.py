# expect: refused (recording)
"""Gathers rows by a list of indices."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x.view(-1, x.shape[-1])[[0, 1, 0]]  # <- here


def replacement_func():
    return fused
