# expect: refused (cpp_instruction)
"""Keeps a bit from call to call in the floating-point control register."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <immintrin.h>
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (_mm_getcsr() & 0x8000u) return;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  _mm_setcsr(_mm_getcsr() | 0x8000u);
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
