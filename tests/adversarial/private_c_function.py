# expect: refused (recording)
"""Reaches the operator in torch's C extension."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch._C._nn.gelu(x)  # <- here


def replacement_func():
    return fused
