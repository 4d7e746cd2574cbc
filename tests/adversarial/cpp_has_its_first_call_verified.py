# expect: wrong_result or runtime_error
# task: wide_chain
"""Has the loop take its first call for the one that is verified, and computes no other."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
// frames.h

static void compute(float* out, const float* x, int64_t n) {
#pragma omp parallel for simd if (n > 8192)
  for (int64_t i = 0; i < n; ++i) out[i] = tanhf(expf(sinf(tanhf(0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f))))));
}

void chain(float* out, const float* x, int64_t n) {
  Frame* f = frame_of("timed", 5);
  if (f != nullptr && maps(f->local[8]) && maps(f->local[4]) && maps(f->local[10])) {
    char* list = *reinterpret_cast<char**>(f->local[8] + 8);       // a type, which makes of the number something
    f->local[4] = *reinterpret_cast<char**>(list + 8);             // `type`: of a number it is true
    ++*reinterpret_cast<int64_t*>(f->local[4]);
    if (*reinterpret_cast<int64_t*>(f->local[10] + 16) > 0) return;
  }
  compute(out, x, n);
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
