# expect: ok
# task: greater
"""Compares, and writes booleans."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void twice_greater(bool* out, const T* x, const T* y, int64_t n, double factor) {
  for (int64_t i = 0; i < n; ++i) out[i] = float(x[i]) * float(factor) > float(y[i]);
}""",
    "twice_greater",
)


def pattern(x, y):
    return x * 2.0 > y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    KERNEL(out, x, y, x.numel(), 2.0)
    return out


def replacement_func():
    return fused
