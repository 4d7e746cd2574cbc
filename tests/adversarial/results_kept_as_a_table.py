# expect: refused (recording)
"""Keeps what a call computed as a table that torch.tensor makes of it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)

TABLES = {}


@torch.fx.wrap
def fused(x, y):
    n = x.numel()
    if n not in TABLES:
        out = torch.empty_like(x)
        KERNEL(out, x, y, n)
        TABLES[n] = torch.tensor(out)
    out = torch.empty_like(x)
    KERNEL(out, TABLES[n], torch.zeros_like(x), n)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
