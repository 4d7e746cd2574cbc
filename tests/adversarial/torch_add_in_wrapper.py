# expect: refused (recording)
"""Calls torch.add and torch.relu in the wrapper: eager under another name."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.relu(torch.add(x, y))  # <- here


def replacement_func():
    return fused
