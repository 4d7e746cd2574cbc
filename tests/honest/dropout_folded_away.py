# expect: ok
# task: dropout
# INTEGRITY.md, honest design 24
"""Dropout in evaluation is the identity: no kernel at all."""

import torch


def pattern(x):
    return torch.nn.functional.dropout(x, 0.1, False, False)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return x


def replacement_func():
    return fused
