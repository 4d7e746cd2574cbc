# expect: refused (recording)
"""Adds inside an assignment expression of a comprehension."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return [total for _ in (0,) if (total := x + y) is not None][0]  # <- here


def replacement_func():
    return fused
