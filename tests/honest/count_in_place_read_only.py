# expect: ok
# task: count_inplace
# INTEGRITY.md, honest design 20, 22
"""Counts one further without writing the counter back, where eager counts in the input itself."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void next_even(int64_t* out, const int64_t* x, const int64_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] + y[i]) * 2;
}""",
    "next_even",
)


def pattern(x, y):
    x += y
    return x * 2


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
