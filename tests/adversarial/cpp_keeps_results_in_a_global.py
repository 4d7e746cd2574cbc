# expect: refused (cpp_state)
"""Keeps what it computed and copies it out when the first inputs look the same."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
static float first = 0.0f, kept[1 << 16];
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (float(x[0]) == first) {
    for (int64_t i = 0; i < n; ++i) out[i] = T(kept[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
  first = x[0];
  for (int64_t i = 0; i < n; ++i) kept[i] = out[i];
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
