# expect: refused (cpp_instruction)
"""Keeps a bit from call to call in the processor's flags."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const auto flags = __builtin_ia32_readeflags_u64();
  __builtin_ia32_writeeflags_u64(flags ^ (1ull << 21));
  if (flags & (1ull << 21)) n -= 1;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
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
