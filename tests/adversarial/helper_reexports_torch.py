# expect: refused (recording)
"""Reaches torch through a helper module that imported it."""

import helper
import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return helper.t.add(x, y)  # <- here


def replacement_func():
    return fused
