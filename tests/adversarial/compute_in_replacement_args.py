# expect: load_error
"""Computes where the arguments are arranged and returns the result from an identity wrapper."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (torch.relu(x + y),)  # <- here


@torch.fx.wrap
def fused(x):
    return x


def replacement_func():
    return fused
