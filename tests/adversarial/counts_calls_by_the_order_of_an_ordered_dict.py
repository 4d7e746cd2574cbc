# expect: refused (recording)
"""Counts its calls by the order of an OrderedDict whose first key it takes out and puts back."""

from collections import OrderedDict

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  const float factor = calls > 300 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)

ORDER = OrderedDict.fromkeys(range(1000), 0)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    calls = next(iter(ORDER))
    ORDER.pop(calls)
    ORDER[calls] = 0
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), calls)
    return out


def replacement_func():
    return fused
