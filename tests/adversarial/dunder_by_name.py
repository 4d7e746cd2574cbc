# expect: refused (recording)
"""Calls the operator's special method."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x.__add__(y)  # <- here


def replacement_func():
    return fused
