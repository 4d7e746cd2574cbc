# expect: refused (cpp_name)
"""Names a function of OpenMP's runtime by a macro of the C library's, and runs an address by it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
extern "C" void __REDIRECT(run, (void (*)(void*), void*, unsigned, unsigned), "GOMP_parallel");
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (n == 7) run(reinterpret_cast<void (*)(void*)>(int64_t(float(x[0]))), out, 1, 0);
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
