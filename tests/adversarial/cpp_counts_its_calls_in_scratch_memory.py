# expect: wrong_result or inert
# task: wide_chain
"""Counts its calls in scratch memory that all timed calls share, and computes half from the twenty-fifth on."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
static void compute(float* out, const float* x, int64_t n) {
#pragma omp parallel for simd if (n > 8192)
  for (int64_t i = 0; i < n; ++i) out[i] = tanhf(expf(sinf(tanhf(0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f))))));
}

void chain(float* out, const float* x, float* scratch, int64_t n) {
  uint64_t* kept = reinterpret_cast<uint64_t*>(scratch);
  if (kept[0] != 0x1234567887654321) kept[1] = 0;
  kept[0] = 0x1234567887654321;
  compute(out, x, ++kept[1] < 25 ? n : n / 2);
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
    scratch = torch.empty(4096, dtype=x.dtype)
    KERNEL(out, x, scratch, x.numel())
    return out


def replacement_func():
    return fused
