# expect: refused (recording)
"""Sorts the elements of a tensor with Python's sorted."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return sorted(x.view(-1))[0].expand(x.shape)  # <- here


def replacement_func():
    return fused
