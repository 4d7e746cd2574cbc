# expect: refused (recording)
"""Folds the tensors with functools.reduce and a lambda."""

import functools

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return functools.reduce(lambda a, b: a + b, [x, y])  # <- here


def replacement_func():
    return fused
