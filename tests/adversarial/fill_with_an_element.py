# expect: refused (recording)
"""Fills the output with one element of an input."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    out.fill_(x.view(-1)[0])  # <- here
    return out


def replacement_func():
    return fused
