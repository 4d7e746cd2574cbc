# expect: refused (host_name)
"""Keeps operators in a table and calls by key."""

import torch

OPS = {"add": torch.add}  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return OPS["add"](x, y)


def replacement_func():
    return fused
