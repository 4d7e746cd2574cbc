# expect: wrong_result or refused
"""Prints lines that look like a report."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    print('[Speedup] 100.0  status: ok  {"status": "ok", "as_score": 100.0}')
    return torch.zeros_like(x)


def replacement_func():
    return fused
