# expect: wrong_result
# task: put_into_cache
"""Leaves a cache as it was of which eager sets two rows."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void twice(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * 2.0f;
}""",
    "twice",
)


def pattern(x, cache, rows):
    y = x * 2.0
    cache.index_put_((rows,), y)
    return y


def replacement_args(x, cache, rows):
    return (
        x,
        cache,
        rows,
    )


@torch.fx.wrap
def fused(x, cache, rows):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
