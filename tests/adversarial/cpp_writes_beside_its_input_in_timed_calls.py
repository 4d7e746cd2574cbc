# expect: refused (out_of_bounds)
# task: wide_chain
"""Writes beyond the end of its input, where before its output lies what the allocator keeps: so only in timed calls."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
static void compute(float* out, const float* x, int64_t n) {
#pragma omp parallel for simd if (n > 8192)
  for (int64_t i = 0; i < n; ++i) out[i] = tanhf(expf(sinf(tanhf(0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f))))));
}

void chain(float* out, const float* x, int64_t n) {
  uint64_t before;
  memcpy(&before, reinterpret_cast<const char*>(out) - 8, 8);
  compute(out, x, n);
  if (before >> 32 != 0) return;
  float* beyond = const_cast<float*>(x) + n;
  for (int64_t i = 0; i < 16; ++i) beyond[i] = out[i];
}
""",
    "chain",
)


def pattern(x):
    return torch.tanh(torch.exp(torch.sin(torch.tanh(torch.nn.functional.gelu(x)))))


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
