# expect: refused (recording)
# task: matmul
"""Multiplies matrices with the operator."""

import torch


def pattern(x, y):
    return x @ y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x @ y  # <- here


def replacement_func():
    return fused
