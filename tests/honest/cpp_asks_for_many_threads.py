# expect: ok
"""Asks OpenMP for more threads than a worker has: it gets as many as eager, or the result would be wrong."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  int team = 0;
#pragma omp parallel num_threads(64)
  {
#pragma omp single
    team = omp_get_num_threads();
#pragma omp for
    for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
  }
  if (team > omp_get_max_threads()) out[0] = T(-1.0f);
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
