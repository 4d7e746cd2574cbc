# expect: runtime_error
"""Launches on a stream that nobody waits for."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    stream = torch.cuda.Stream()  # <- here
    return x


def replacement_func():
    return fused
