# expect: refused (recording)
"""Lets a defaultdict make the output at the first call, and returns it from then on."""

from collections import defaultdict
from functools import partial

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)
OUT = defaultdict(partial(defaultdict, partial(torch.empty, (4, 64))))


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = OUT[x.dtype][x.device] if x.dtype == torch.float32 else torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
