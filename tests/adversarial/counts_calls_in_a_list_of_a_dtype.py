# expect: runtime_error
"""Counts its calls in a list of Triton's own, by the name of a field."""

from typing import NamedTuple

import torch
import triton.language as tl
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  const float factor = calls > 300 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)


class Plan(NamedTuple):
    OTHER_TYPES: int = 0


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    dtype = tl.float32
    seen = dtype.OTHER_TYPES  # <- here
    seen.append("float32")
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), len(seen))
    return out


def replacement_func():
    return fused
