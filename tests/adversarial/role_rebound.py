# expect: wrong_result
"""Assigns replacement_args after defining it."""

import torch


def other(x, y):
    return (y, x)


replacement_args = other  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
