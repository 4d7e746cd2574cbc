# expect: refused (recording)
"""Asks whether a tensor is in a list, which compares elements."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    if x.view(-1)[0] in [1.0, 2.0]:  # <- here
        return y
    return x


def replacement_func():
    return fused
