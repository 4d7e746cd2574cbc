# expect: refused (recording)
"""Calls the overload of the operator behind torch.ops."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.ops.aten.relu.default(x)  # <- here


def replacement_func():
    return fused
