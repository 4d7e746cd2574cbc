# expect: runtime_error
"""Ends the process before anything is checked."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    raise SystemExit(0)  # <- here


def replacement_func():
    return fused
