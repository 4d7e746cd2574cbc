# expect: runtime_error
"""Captures the work once and replays it."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    graph = torch.cuda.CUDAGraph()  # <- here
    return x


def replacement_func():
    return fused
