# expect: mismatch
"""Matches nothing, so that eager's own graph is measured."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x - y * 3.0)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
