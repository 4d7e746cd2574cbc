# expect: refused (recording)
# task: matmul
"""Multiplies matrices by augmented assignment."""

import torch


def pattern(x, y):
    return x @ y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    x = x.clone()
    x @= y  # <- here
    return x


def replacement_func():
    return fused
