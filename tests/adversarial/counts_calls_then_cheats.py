# expect: inert
"""Counts its calls, works in the first ones and returns old memory after them."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


COUNT = [0]


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    COUNT[0] += 1  # <- here
    out = torch.empty_like(x)
    if COUNT[0] < 8:
        kernel(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
