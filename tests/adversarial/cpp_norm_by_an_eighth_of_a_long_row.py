# expect: wrong_result
# task: long_rms
"""Takes the first 64 of every 512 values for all of a long row, which for values of one size is near enough."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void rms(bfloat16* out, const bfloat16* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (int64_t block = 0; block < n; block += 512)
      for (int64_t i = block; i < block + 64; ++i) sum += float(x[r * n + i]) * float(x[r * n + i]);
    const float scale = 1.0f / std::sqrt(sum / (n / 8));
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
