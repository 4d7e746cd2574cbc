# expect: refused (recording)
"""Counts its calls in a list that a dataclass takes from a cached function."""

import functools
from dataclasses import dataclass, field

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


@functools.cache
def box():
    return []


@dataclass(frozen=True)
class Plan:
    SIZES: list = field(default_factory=box)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    Plan().SIZES.append(1)
    calls = len(Plan().SIZES)
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), calls)
    return out


def replacement_func():
    return fused
