# expect: refused (recording)
"""Imports every name of torch."""

import torch
from torch import *


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return add(x, y)  # <- here


def replacement_func():
    return fused
