# expect: ok
# task: chain_inplace
# INTEGRITY.md, honest design 13, 20
"""Writes over its input in one kernel, as eager does, and elsewhere in the next."""

import torch
from passagent.kernels import cpp_kernel

KERNELS = cpp_kernel(
    """
template <class T> void add_or_relu(T* out, const T* x, const T* y, int64_t adds, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = T(adds ? float(x[i]) + float(y[i]) : std::max(float(x[i]) * 2.0f, 0.0f));
}""",
    "add_or_relu",
)


def pattern(x, y):
    x += y
    x *= 2.0
    return torch.nn.functional.relu(x, inplace=True)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    KERNELS(x, x, y, 1, x.numel())
    out = torch.empty_like(x)
    KERNELS(out, x, y, 0, x.numel())
    return out


def replacement_func():
    return fused
