# expect: refused (recording)
"""Keeps operators in a table and calls by key."""

import torch

OPS = {"add": torch.add}


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return OPS["add"](x, y)  # <- here


def replacement_func():
    return fused
