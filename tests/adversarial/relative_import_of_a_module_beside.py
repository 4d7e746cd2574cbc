# expect: refused (recording)
"""A module in a folder imports another one beside it, where inspection finds one at the top."""

import torch
from folder.inner import add_relu


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return add_relu(x, y)


def replacement_func():
    return fused
