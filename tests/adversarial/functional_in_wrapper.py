# expect: refused (recording)
# task: softmax
"""Delegates to torch.nn.functional through its usual alias."""

import torch
import torch.nn.functional as F


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return F.softmax(x, dim=-1)  # <- here


def replacement_func():
    return fused
