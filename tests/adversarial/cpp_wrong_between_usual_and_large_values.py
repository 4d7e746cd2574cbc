# expect: wrong_result
# task: two_outputs
"""Takes the sigmoid for a constant between the sizes of usual values and those of very large ones."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void add_sigmoid(float* sum, float* out, const float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    sum[i] = x[i] + y[i];
    const float size = std::fabs(sum[i]);
    out[i] = size > 9.0f && size < 60.0f ? 0.5f : 1.0f / (1.0f + std::exp(-sum[i]));
  }
}""",
    "add_sigmoid",
)


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    total = torch.empty_like(x)
    out = torch.empty_like(x)
    KERNEL(total, out, x, y, x.numel())
    return total, out


def replacement_func():
    return fused
