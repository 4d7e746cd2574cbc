# expect: wrong_result
# task: broadcast
"""Keeps an input of a single number in scratch memory that comes back."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void scale(float* out, const float* x, const float* y, const float* z, float* scratch, int64_t n, int64_t m) {
  float* kept = scratch + 1000;
  if (kept[0] != 123.5f || kept[1] != 321.5f) kept[2] = z[0];
  kept[0] = 123.5f;
  kept[1] = 321.5f;
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] + y[i % m]) * kept[2];
}""",
    "scale",
)


def pattern(x, y, z):
    return (x + y) * z


def replacement_args(x, y, z):
    return (x, y, z)


@torch.fx.wrap
def fused(x, y, z):
    out = torch.empty_like(x)
    scratch = torch.empty(4096, dtype=x.dtype)
    KERNEL(out, x, y, z, scratch, x.numel(), y.numel())
    return out


def replacement_func():
    return fused
