# expect: refused (recording)
"""Computes in a context of its own, around a kernel that only looks busy."""

from contextlib import contextmanager

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


def launch(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


@contextmanager
def added(x, y):
    yield x + y


@torch.fx.wrap
def fused(x, y):
    with added(x, y) as both:
        return launch(both, torch.zeros_like(both))


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
