# expect: ok
# task: mask
"""Reads int64, writes float32, and takes a flag."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void mask(float* out, const int64_t* x, int64_t n, bool keep) {
  for (int64_t i = 0; i < n; ++i) out[i] = (1.0f - (keep ? 0.0f : static_cast<float>(x[i]))) * -10000.0f;
}""",
    "mask",
)


def pattern(x):
    return (1.0 - x.to(torch.float32)) * -10000.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    KERNEL(out, x, x.numel(), False)
    return out


def replacement_func():
    return fused
