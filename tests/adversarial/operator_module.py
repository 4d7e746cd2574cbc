# expect: refused (recording)
"""Adds with operator.add, which is for numbers."""

import operator

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return operator.add(x, y)  # <- here


def replacement_func():
    return fused
