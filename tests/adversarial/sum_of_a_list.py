# expect: refused (recording)
"""Lets Python's sum add the tensors."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return sum([x, y])  # <- here


def replacement_func():
    return fused
