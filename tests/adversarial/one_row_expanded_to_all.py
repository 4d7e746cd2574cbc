# expect: wrong_result
# task: spread_rows
"""Returns one row with a stride of zero where eager has all of them."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void twice(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = 2.0f * x[i];
}""",
    "twice",
)


def pattern(x):
    return (x.expand(16, 32) * 2.0).transpose(0, 1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out.expand(16, 32).transpose(0, 1)


def replacement_func():
    return fused
