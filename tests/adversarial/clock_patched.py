# expect: wrong_result
"""Patches the clock."""

import time  # <- here

import torch

time.perf_counter = lambda: 0.0


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
