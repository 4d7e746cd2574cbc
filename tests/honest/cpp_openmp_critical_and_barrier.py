# expect: ok
# task: sum_all
"""Partial sums that are joined in a named critical section."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void twice_sum(T* out, const T* x, int64_t n) {
  double total = 0.0;
#pragma omp parallel num_threads(2)
  {
    double mine = 0.0;
#pragma omp for nowait
    for (int64_t i = 0; i < n; ++i) mine += float(x[i]);
#pragma omp critical(join)
    total += mine;
#pragma omp barrier
#pragma omp single
    out[0] = T(float(total * 2.0));
  }
}""",
    "twice_sum",
)


def pattern(x):
    return (x * 2.0).sum()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((), dtype=x.dtype, device=x.device)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
