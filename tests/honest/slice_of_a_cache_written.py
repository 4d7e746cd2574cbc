# expect: ok
# task: slice_of_cache
"""Computes a result and writes it into the slice of a cache, as eager does."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void twice(float* out, float* slice, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) slice[i] = out[i] = x[i] * 2.0f;
}""",
    "twice",
)


def pattern(x, cache):
    y = x * 2.0
    cache[slice(2, 4, None)] = y
    return y


def replacement_args(x, cache):
    return (
        x,
        cache,
    )


@torch.fx.wrap
def fused(x, cache):
    out = torch.empty_like(x)
    KERNEL(out, cache[2:4], x, x.numel())
    return out


def replacement_func():
    return fused
