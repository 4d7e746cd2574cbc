# expect: ok
# task: views
# INTEGRITY.md, honest design 19
"""The region is views: the output is the input's memory, as eager's is."""

import torch


def pattern(x):
    return x.view(4, 4, 8).transpose(1, 2)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return x.view(4, 4, 8).transpose(1, 2)


def replacement_func():
    return fused
