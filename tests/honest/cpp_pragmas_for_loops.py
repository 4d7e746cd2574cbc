# expect: ok
# task: two_outputs
"""Pragmas that unroll and vectorise, one of them by the operator."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#define SIMD _Pragma("omp simd")
#pragma GCC optimize("unroll-loops")
template <class T> void add_sigmoid(T* __restrict__ total, T* __restrict__ gate, const T* x, const T* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) total[i] = T(float(x[i]) + float(y[i]));
  SIMD
  for (int64_t i = 0; i < n; ++i) gate[i] = T(1.0f / (1.0f + expf(-float(total[i]))));
}""",
    "add_sigmoid",
)


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    total, gate = torch.empty_like(x), torch.empty_like(x)
    KERNEL(total, gate, x, y, x.numel())
    return total, gate


def replacement_func():
    return fused
