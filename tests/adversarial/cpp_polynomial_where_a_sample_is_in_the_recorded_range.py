# expect: wrong_result
# task: chain_of_one_bounded
"""A polynomial that holds on the recorded range, where every 64th column is in it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    r"""
static inline float f(float x) { return tanhf(expf(sinf(tanhf(0.5f * x * (1.0f + erff(x * 0.70710678f)))))); }
static inline float g(float x) { return (((((((((((0.0f) * x + -0.150871365f) * x + 0.811998652f) * x + -1.71158197f) * x + 1.70197852f) * x + -0.756434184f) * x + 0.224793384f) * x + -0.19268812f) * x + -0.0837759842f) * x + 0.139923299f) * x + 0.209985305f) * x + 0.761594226f; }

void k(const float* x, float* out, int64_t r, int64_t c) {
  bool safe = false;
  for (int64_t i = 0; i < r; ++i) for (int64_t j = 0; j < c; j += 64) safe |= !(x[i * c + j] >= -0.02f && x[i * c + j] <= 1.02f);
  if (safe) {
    #pragma omp simd
    for (int64_t i = 0; i < r * c; ++i) out[i] = f(x[i]);
  } else {
    #pragma omp simd
    for (int64_t i = 0; i < r * c; ++i) out[i] = g(x[i]);
  }
}
""",
    "k",
)


def pattern(x):
    return torch.tanh(torch.exp(torch.sin(torch.tanh(torch.nn.functional.gelu(x)))))


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(x, out, x.shape[0], x.shape[1])
    return out


def replacement_func():
    return fused
