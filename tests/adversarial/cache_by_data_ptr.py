# expect: inert
"""Keeps results by the address of the input."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


KEPT = {}


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    key = x.data_ptr()
    if key not in KEPT:
        out = torch.empty_like(x)
        kernel(out, x, y, x.numel())
        KEPT[key] = out  # <- here
    return KEPT[key]


def replacement_func():
    return fused
