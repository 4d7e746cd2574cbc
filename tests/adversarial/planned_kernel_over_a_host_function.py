# expect: refused or load_error
"""What is planned is no kernel but a function that computes with torch."""

import torch
import triton
from passagent.kernels import triton_kernel


def _plan(x, y):
    n = x.numel()
    return triton.cdiv(n, 64), {"out": x}, {"n": n, "BLOCK": 64}


@triton_kernel(_plan)
def add_relu(x, y):
    return torch.nn.functional.relu(x + y)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return add_relu(x, y)


def replacement_func():
    return fused
