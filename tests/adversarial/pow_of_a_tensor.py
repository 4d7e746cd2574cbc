# expect: refused (recording)
"""Computes with the built-in pow, which calls the tensor's own."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return pow(x, 2)  # <- here


def replacement_func():
    return fused
