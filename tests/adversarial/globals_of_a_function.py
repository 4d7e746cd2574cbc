# expect: refused (recording)
"""Takes torch out of a function's globals."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return fused.__globals__["torch"]


def replacement_func():
    return fused
