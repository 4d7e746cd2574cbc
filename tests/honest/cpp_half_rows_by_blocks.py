# expect: ok
# task: gelu_half
"""float16 by blocks through float buffers, with vectorised erf."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void mul_gelu(T* out, const T* x, const T* y, int64_t n) {
  constexpr int64_t block = 64;
  for (int64_t start = 0; start < n; start += block) {
    const int64_t count = std::min(block, n - start);
    float a[block], b[block];
    load_f32(a, x + start, count);
    load_f32(b, y + start, count);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float v = round_to<T>(a[i] * b[i]);
      a[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
    }
    store_f32(out + start, a, count);
  }
}""",
    "mul_gelu",
)


def pattern(x, y):
    return torch.nn.functional.gelu(x * y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
