# expect: refused (recording)
# task: matmul
"""Binds an operator with functools.partial."""

import functools

import torch


def pattern(x, y):
    return x @ y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return functools.partial(torch.matmul, x)(y)  # <- here


def replacement_func():
    return fused
