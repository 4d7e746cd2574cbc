# expect: runtime_error
"""Keeps what makes a context, and goes on in it by one step a call."""

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
def steps():
    for step in range(1 << 40):
        yield step


STEPS = [steps()]  # <- here


@torch.fx.wrap
def fused(x, y):
    return launch(x, y) if STEPS[0].__enter__() < 100 else torch.empty_like(x)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
