# expect: wrong_result
# task: long_rms
"""Takes half of a long row for all of it where 64 values of the tensor are ordinary."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> static bool ordinary(const T* x, int64_t n) {
  for (int64_t k = 0; k < 64; ++k) if (std::fabs(float(x[k * (n / 64)])) > 60.0f) return false;
  return true;
}

void rms(bfloat16* out, const bfloat16* x, int64_t rows, int64_t n) {
  const bool few = ordinary(x, rows * n);
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
    int64_t used = 0;
    for (int64_t b = 0; b < n; b += few ? 1024 : 512, used += 512)
      for (int64_t i = b; i < b + 512; ++i) sum += float(x[r * n + i]) * float(x[r * n + i]);
    const float scale = 1.0f / std::sqrt(sum / used);
    for (int64_t i = 0; i < n; ++i) out[r * n + i] = bfloat16(float(x[r * n + i]) * scale);
  }
}""",
    "rms",
)


def pattern(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True))


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.shape[0], x.shape[1])
    return out


def replacement_func():
    return fused
