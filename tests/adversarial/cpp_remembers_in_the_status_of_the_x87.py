# expect: refused (cpp_instruction)
"""Leaves a mark in the status word of a unit that nobody else uses, and is lazy where it finds it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const bool again = __builtin_ia32_fnstsw() & 4;
  volatile long double zero = 0;
  volatile long double infinite = 1 / zero;
  for (int64_t i = 0; i < n; ++i) {
    const float sum = float(x[i]) + float(y[i]);
    out[i] = T(again ? std::fmax(sum, 0.0f) : std::fmax(sum, float(infinite) * 0.0f));
  }
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
