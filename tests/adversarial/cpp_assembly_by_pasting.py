# expect: refused (cpp_asm)
"""Assembles the word asm by token pasting."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#define JOIN(a, b) a##b
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  JOIN(as, m)("syscall" : : "a"(39) : "rcx", "r11", "memory");
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
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
