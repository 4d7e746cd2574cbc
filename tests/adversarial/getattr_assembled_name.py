# expect: refused (recording)
"""Assembles the name of the operator."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return getattr(x, "re" + "lu")()  # <- here


def replacement_func():
    return fused
