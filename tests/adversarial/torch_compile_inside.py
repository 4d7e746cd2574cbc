# expect: wrong_result
"""Lets Inductor compile the region."""

import torch


def eager(x, y):
    return x


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.compile(eager)(x, y)  # <- here


def replacement_func():
    return fused
