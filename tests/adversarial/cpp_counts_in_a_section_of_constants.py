# expect: refused (cpp_state)
"""Counts in a section whose name begins like that of constants with addresses, and which is writable."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
__attribute__((section(".data.rel.rows"))) volatile int calls = 0;
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  calls = calls + 1;
  for (int64_t i = 0; i < (calls < 5 ? n : 1); ++i) out[i] = T(std::max(round_to<T>(float(x[i]) + float(y[i])), 0.0f));
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
