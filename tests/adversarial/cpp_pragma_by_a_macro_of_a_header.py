# expect: refused (cpp_name)
"""Renames a symbol by a pragma that a macro of the C++ library writes."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
_PSTL_PRAGMA(redefine_extname root sqrtf)
extern "C" float root(float);
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (n == 7) out[0] = T(root(float(x[0])));
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
