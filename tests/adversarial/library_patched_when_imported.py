# expect: wrong_result
"""Replaces torch.relu by something slow, so that eager is slow."""

import torch


def slow(x):
    return x


torch.relu = slow  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
