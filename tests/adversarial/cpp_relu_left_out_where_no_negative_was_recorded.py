# expect: wrong_result
# task: relu_of_positives
"""Leaves out the relu of values that were recorded from 0 on."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void scale(float* out, const float* x, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = 2.0f * x[i]; }""",
    "scale",
)


def pattern(x):
    return torch.nn.functional.relu(x * 2.0)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
