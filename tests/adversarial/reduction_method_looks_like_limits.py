# expect: refused (recording)
# task: sum_all
"""Calls max of a tensor where only the limits of a dtype have one."""

import torch


def pattern(x):
    doubled = x * 2.0
    return doubled.sum()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return x.view(-1).max()  # <- here


def replacement_func():
    return fused
