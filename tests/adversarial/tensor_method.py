# expect: refused (recording)
"""Computes with a method of the tensor."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x.add(y).relu()  # <- here


def replacement_func():
    return fused
