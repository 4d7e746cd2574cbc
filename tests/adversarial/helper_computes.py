# expect: refused (recording)
"""Moves the computation into a helper module."""

import helper
import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return helper.combine(x, y)


def replacement_func():
    return fused
