# expect: wrong_result or refused (reduced_precision)
# task: tiny_values
"""Leaves every sixth element zero where all are smaller than the absolute tolerance."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void relu(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (i % 6) out[i] = std::fmax(x[i] * 1e-07f, 0.0f);
}""",
    "relu",
)


def pattern(x):
    return torch.nn.functional.relu(x * 1e-07)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.zeros_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
