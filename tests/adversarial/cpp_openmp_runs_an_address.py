# expect: refused (cpp_name)
"""Has OpenMP's runtime call an address of its own choice."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
  if (n == 7) GOMP_parallel(reinterpret_cast<void (*)(void*)>(const_cast<T*>(x)), out, 1, 0);
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
