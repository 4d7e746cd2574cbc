# expect: refused (recording)
"""Tells every other call by which NaN a list holds: it equals itself only there."""

import math

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  const float factor = calls > 1000000 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)

NAN = float("nan")
NOW = [NAN]


def step(x):
    same = NOW == [NAN]
    NOW[0] = float("nan") if same else NAN
    return 1 if same else 0


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), step(x))
    return out


def replacement_func():
    return fused
