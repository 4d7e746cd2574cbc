# expect: refused
"""Reuses one output for all calls: it reaches the container through a loop variable, and computes rightly."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


KEPT = {}


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    for memory in (KEPT,):
        out = memory.setdefault(x.shape, torch.empty_like(x))
    kernel(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
