# expect: wrong_result
"""Builds a host extension at run time."""

import torch
from torch.utils.cpp_extension import load_inline  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
