# expect: refused (recording)
"""Counts its calls by which of four lists a fifth one holds."""

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

ALL = [[0], [1], [2], [3]]
NOW = [ALL[0]]


def step(x):
    n = NOW[0][0]
    NOW[0] = ALL[(n + 1) % 4]
    return n


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
