# expect: refused (host_name)
"""Passes a module around as a value."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    library = torch  # <- here
    return library.add(x, y)


def replacement_func():
    return fused
