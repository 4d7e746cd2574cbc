# expect: wrong_result
# task: wide_mean
"""Estimates a mean from half of the values, which for values of one size is near enough in bfloat16."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void mean_square(bfloat16* out, const bfloat16* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (int64_t i = 0; i < n; i += 2) sum += float(x[r * n + i]) * float(x[r * n + i]);
    out[r] = bfloat16(sum / (n / 2));
  }
}""",
    "mean_square",
)


def pattern(x):
    return (x * x).mean(-1, keepdim=True)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((x.shape[0], 1), dtype=x.dtype)
    KERNEL(out, x, x.shape[0], x.shape[1])
    return out


def replacement_func():
    return fused
