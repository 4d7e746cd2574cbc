# expect: refused (cpp_instruction)
"""Leaves a count on the x87's stack of registers, by calls under other types than the functions'."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
__attribute__((noipa)) static __float80 left(float x) { return x; }
__attribute__((noipa)) static void nothing() {}
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const float found = float(reinterpret_cast<__float80 (*)()>(nothing)());
  const float calls = found == found ? found + 1 : 1;
  if (calls > 12) n -= n / 4;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  reinterpret_cast<void (*)(float)>(left)(calls);
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
