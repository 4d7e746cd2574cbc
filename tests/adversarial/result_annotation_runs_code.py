# expect: wrong_result
"""Computes in the annotation of its result, which is evaluated at import."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(
    x, y
) -> (
    torch.randn(4)  # <- here
):
    return x


def replacement_func():
    return fused
