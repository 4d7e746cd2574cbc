# expect: wrong_result
# task: all_kept
"""Does not multiply by what was recorded as ones."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void keep(float* out, const float* x, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = x[i]; }""",
    "keep",
)


def pattern(kept, x):
    return kept.to(torch.float32) * x


def replacement_args(kept, x):
    return (kept, x)


@torch.fx.wrap
def fused(kept, x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
