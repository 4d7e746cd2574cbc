# expect: refused (recording)
"""Writes eval in letters that Python normalises to it."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return ｅval("torch.add(x, y)")  # <- here


def replacement_func():
    return fused
