# expect: runtime_error or refused
"""Returns float64, which agrees with everything."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(double* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = double(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty(x.shape, dtype=torch.float64)
    kernel(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
