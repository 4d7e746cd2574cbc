# expect: ok
"""Vector intrinsics where the processor has them, plain C++ elsewhere."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#if defined(__AVX2__)
#include <immintrin.h>
#endif
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}
template <> void add_relu<float>(float* out, const float* x, const float* y, int64_t n) {
  int64_t i = 0;
#if defined(__AVX2__)
  const __m256 zero = _mm256_setzero_ps();
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_max_ps(zero, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i))));
#endif
  for (; i < n; ++i) out[i] = std::max(x[i] + y[i], 0.0f);
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
