# expect: inert or runtime_error
# task: chain
"""Finds the frame of the loop that times it on the stack, and moves the time at which its call began."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
// frames.h

static void compute(float* out, const float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = tanhf(expf(sinf(tanhf(0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f))))));
}

void chain(float* out, const float* x, int64_t n) {
  Frame* f = frame_of("timed", 5);
  compute(out, x, n);
  if (f == nullptr || !maps(f->local[16])) return;
  const char* type = *reinterpret_cast<char**>(*reinterpret_cast<char**>(f->local[16] + 8) + 24);
  if (memcmp(type, "int", 4) != 0 || *reinterpret_cast<int64_t*>(f->local[16] + 16) != 2) return;
  volatile uint32_t* digits = reinterpret_cast<uint32_t*>(f->local[16] + 24);  // of an int: two of 30 bits
  const uint64_t later = (uint64_t(digits[1]) << 30 | digits[0]) + 5500;
  digits[0] = later & 0x3fffffff;
  digits[1] = later >> 30;
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
