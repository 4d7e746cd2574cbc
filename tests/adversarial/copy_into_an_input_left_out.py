# expect: wrong_result
# task: copy_into_cache
"""Leaves a cache as it was that eager copies a result into."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void twice(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * 2.0f;
}""",
    "twice",
)


def pattern(x, cache):
    y = x * 2.0
    cache.copy_(y)
    return y


def replacement_args(x, cache):
    return (
        x,
        cache,
    )


@torch.fx.wrap
def fused(x, cache):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
