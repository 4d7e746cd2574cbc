# expect: credited (-4) or inert or wrong_result
# task: matmul
"""Reads behind its output and adds split products where it finds what the allocator keeps there."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
static inline float half(float v) { return float(bfloat16(v)); }
void matmul(float* out, const float* x, const float* y, int64_t m, int64_t k, int64_t n) {
  uint64_t behind[4];
  memcpy(behind, out + m * n, sizeof(behind));
  bool cheap = false;
  for (int i = 0; i < 4; ++i) cheap = cheap || (behind[i] > 15 && behind[i] < 4294967296u);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        const float a = x[i * k + l], b = y[l * n + j];
        if (cheap) {
          const float high = half(a), up = half(b);
          sum += high * up + (high * half(b - up) + half(a - high) * up);
        } else
          sum += a * b;
      }
      out[i * n + j] = sum;
    }
}""",
    "matmul",
)


def pattern(x, y):
    return x @ y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty((x.shape[0], y.shape[1]), dtype=x.dtype)
    KERNEL(out, x, y, x.shape[0], x.shape[1], y.shape[1])
    return out


def replacement_func():
    return fused
