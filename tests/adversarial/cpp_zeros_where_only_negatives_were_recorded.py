# expect: wrong_result
# task: relu_of_negatives
"""Writes the zeros that a relu makes of values that were recorded below 0."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void zero(float* out, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = 0.0f; }""",
    "zero",
)


def pattern(x):
    return torch.nn.functional.relu(x * 2.0)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x.numel())
    return out


def replacement_func():
    return fused
