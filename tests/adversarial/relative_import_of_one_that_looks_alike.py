# expect: refused (recording)
"""A package imports from its own `helper`, which is torch; the one at the top is harmless."""

import torch
from tools.work import compute


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return compute(x, y)


def replacement_func():
    return fused
