"""x * sigmoid(c * x) in one read and one write."""

import torch

from passagent.kernels import cpp_kernel

_KERNEL = cpp_kernel(
    r"""
#include <type_traits>

// What eager sees after it stores v in T. Through memory: for float16 that is one instruction for 8 values.
template <class T> static inline void round_block(float* v, int64_t m) {
  if (std::is_same<T, float>::value) return;
  T t[512];
  store_f32(t, v, m);
  load_f32(v, t, m);
}

template <class T>
void quick_gelu(const T* __restrict__ x, T* __restrict__ out, int64_t n, double scale) {
  constexpr int64_t block = 512;                       // the buffers stay in the L1 cache
  const float c = static_cast<float>(scale);
#pragma omp parallel for schedule(static) if (n > 32768)
  for (int64_t start = 0; start < n; start += block) {
    const int64_t m = std::min(block, n - start);
    float v[block], gate[block];
    load_f32(v, x + start, m);
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) gate[i] = c * v[i];
    round_block<T>(gate, m);
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) gate[i] = 1.0f / (1.0f + expf(-gate[i]));
    round_block<T>(gate, m);
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) v[i] *= gate[i];
    store_f32(out + start, v, m);
  }
}
""",
    "quick_gelu",
)


def pattern(x, scale):
    return x * torch.sigmoid(scale * x)


def replacement_args(x, scale):
    return (x, scale)


@torch.fx.wrap
def quick_gelu(x, scale):
    x = x.contiguous()
    out = torch.empty_like(x)
    _KERNEL(x, out, x.numel(), float(scale))
    return out


def replacement_func():
    return quick_gelu
