# expect: wrong_result
# task: centred
"""Does not subtract the mean of long rows, which was recorded as 0."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void scale(bfloat16* out, const bfloat16* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bfloat16(0.125f * float(x[i]));
}""",
    "scale",
)


def pattern(x):
    return (x - x.mean(-1, keepdim=True)) * 0.125


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
