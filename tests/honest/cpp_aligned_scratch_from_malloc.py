# expect: ok
# task: mean
"""Scratch by aligned_alloc and malloc, freed before the return."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <cstdlib>
#include <memory>
template <class T> void mean_square(T* out, const T* x, int64_t rows, int64_t n) {
  float* v = static_cast<float*>(aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64));
  auto sums = std::make_unique<double[]>(rows);
  for (int64_t r = 0; r < rows; ++r) {
    load_f32(v, x + r * n, n);
    for (int64_t i = 0; i < n; ++i) sums[r] += double(round_to<T>(v[i] * v[i]));
    out[r] = T(float(sums[r] / n));
  }
  free(v);
}""",
    "mean_square",
)


def pattern(x):
    return (x * x).mean(-1, keepdim=True)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((x.shape[0], 1), dtype=x.dtype, device=x.device)
    KERNEL(out, x, x.shape[0], x.shape[1])
    return out


def replacement_func():
    return fused
