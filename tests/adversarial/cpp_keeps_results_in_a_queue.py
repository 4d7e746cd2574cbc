# expect: refused (cpp_state)
"""Keeps sums from call to call in a queue."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <queue>
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  static std::queue<float> sums;
  for (int64_t i = 0; i < n; ++i) sums.push(float(x[i]) + float(y[i]));
  for (int64_t i = 0; i < n; ++i, sums.pop()) out[i] = T(std::fmax(sums.front(), 0.0f));
}""",
    "add_relu",
)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
