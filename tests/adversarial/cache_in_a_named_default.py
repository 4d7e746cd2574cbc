# expect: refused (recording)
"""Keeps results in a module-level container that comes in as a default argument."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


MEMORY = {}


def remember(x, y, memory=MEMORY):
    return memory.setdefault(0, x)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return remember(x, y)


def replacement_func():
    return fused
