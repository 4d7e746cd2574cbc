# expect: ok
"""GCC's vector types, attributes and builtins."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
typedef float v8 __attribute__((vector_size(32), aligned(4)));
__attribute__((always_inline)) static inline float positive(float a) { return __builtin_expect(a < 0.0f, 0) ? 0.0f : a; }
__attribute__((noinline, hot)) static void rows(float* __restrict__ out, const float* __restrict__ x,
                                                const float* __restrict__ y, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
    __builtin_prefetch(x + i + 64);
    v8 sum = *reinterpret_cast<const v8*>(x + i) + *reinterpret_cast<const v8*>(y + i);
    *reinterpret_cast<v8*>(out + i) = sum;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = positive(out[i]);
}
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  int64_t done = 0;
  if constexpr (sizeof(T) == 4) rows(out, x, y, done = n / 8 * 8);
  for (int64_t i = done; i < n; ++i) out[i] = T(positive(float(x[i]) + float(y[i])));
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
