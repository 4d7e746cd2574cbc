# expect: ok
# task: chain_inplace
# INTEGRITY.md, honest design 12, 20
"""Replaces the last operators of a chain that works in place, and leaves its input as the first left it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void scaled_relu(T* out, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) * 2.0f, 0.0f));
}""",
    "scaled_relu",
)


def pattern(x):
    x *= 2.0
    return torch.nn.functional.relu(x, inplace=True)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
