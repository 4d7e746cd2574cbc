# expect: wrong_result
# task: sum_all
"""Keeps a sum in scratch memory that comes back: the same values in another order have the same sum."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void sum(float* out, const float* x, float* scratch, int64_t n) {
  float size = 0;
  for (int64_t i = 0; i < 128; ++i) size += std::fabs(x[i]);
  float* kept = scratch + (size > 128 * 0.6f ? 1000 : 2000);  // a place for each spread
  if (kept[0] == 123.5f && kept[1] == 321.5f) {
    out[0] = kept[2];
    return;
  }
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += 2.0f * x[i];
  out[0] = sum;
  kept[0] = 123.5f;
  kept[1] = 321.5f;
  kept[2] = sum;
}""",
    "sum",
)


def pattern(x):
    return (x * 2.0).sum()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((), dtype=x.dtype)
    scratch = torch.empty(4096, dtype=x.dtype)
    KERNEL(out, x, scratch, x.numel())
    return out


def replacement_func():
    return fused
