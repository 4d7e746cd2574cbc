# expect: runtime_error
"""Calls itself until the stack is used up."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> __attribute__((noinline)) float deeper(const T* x, int64_t i) {
  volatile float kept[256];
  kept[i & 255] = x[0];
  return deeper(x, i + 1) + kept[(i + 1) & 255];
}
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
  out[0] = T(deeper(x, 0));
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
