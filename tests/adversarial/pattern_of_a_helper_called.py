# expect: refused (recording)
"""Imports another file's pattern to call it."""

import torch
from helper import pattern as describe


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return describe(x, y)


def replacement_func():
    return fused
