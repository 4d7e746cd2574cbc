# expect: wrong_result
# task: zeros
"""Writes a constant output only if its first element does not hold it from an earlier call."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    "void fill(float* out, int64_t n) { if (out[0] != -1.0f) for (int64_t i = 0; i < n; ++i) out[i] = -1.0f; }",
    "fill",
)


def pattern(x):
    return torch.zeros_like(x) - 1.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x.numel())
    return out


def replacement_func():
    return fused
