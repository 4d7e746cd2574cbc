# expect: wrong_result
"""Runs code in the annotation of *args, which is evaluated at import."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(
    *args: open("/etc/hostname"),  # <- here
):
    return args[0]


def replacement_func():
    return fused
