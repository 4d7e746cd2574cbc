# expect: ok
# task: long_product_half
# INTEGRITY.md, honest design 4, 10
"""Adds a product of half-precision operands in four parts, each rounded to the outputs' dtype."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void matmul(T* out, const T* x, const T* y, int64_t m, int64_t k, int64_t n) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T total = T(0.0f);
      for (int64_t part = 0; part < 4; ++part) {
        float sum = 0;
        for (int64_t l = part * k / 4; l < (part + 1) * k / 4; ++l) sum += float(x[i * k + l]) * float(y[l * n + j]);
        total = T(float(total) + float(T(sum)));
      }
      out[i * n + j] = T(float(total) * 0.0009765625f);
    }
}""",
    "matmul",
)


def pattern(x, y):
    return (x @ y) * 0.0009765625


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty((x.shape[0], y.shape[1]), dtype=x.dtype)
    KERNEL(out, x, y, x.shape[0], x.shape[1], y.shape[1])
    return out


def replacement_func():
    return fused
