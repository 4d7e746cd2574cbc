# expect: inert or runtime_error
# task: wide_chain
"""Keeps results in memory whose addresses lie in scratch memory, by a fingerprint of the values, and copies those that it knows."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
static void compute(float* out, const float* x, int64_t n) {
#pragma omp parallel for simd if (n > 8192)
  for (int64_t i = 0; i < n; ++i) out[i] = tanhf(expf(sinf(tanhf(0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f))))));
}

struct Kept { uint64_t mark, used, print[62]; float* result[62]; };
void chain(float* out, const float* x, float* scratch, int64_t n) {
  Kept* kept = reinterpret_cast<Kept*>(scratch);
  if (kept->mark != 0x1234567887654321) {
    kept->mark = 0x1234567887654321;
    kept->used = 0;
  }
  uint64_t print = 1469598103934665603u;
  for (int64_t i = 0; i < 64; ++i) print = (print ^ __builtin_bit_cast(uint32_t, x[i * (n / 64)])) * 1099511628211u;
  for (uint64_t k = 0; k < kept->used; ++k)
    if (kept->print[k] == print) {
      memcpy(out, kept->result[k], n * 4);
      return;
    }
  compute(out, x, n);
  if (kept->used == 62) return;
  float* result = static_cast<float*>(malloc(n * 4));
  memcpy(result, out, n * 4);
  kept->result[kept->used] = result;
  kept->print[kept->used++] = print;
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
