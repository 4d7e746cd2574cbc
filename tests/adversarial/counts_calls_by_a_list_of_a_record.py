# expect: refused (recording)
"""Counts its calls by a list that a named tuple holds."""

from typing import NamedTuple

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  const float factor = calls > 100000 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)


class Plan(NamedTuple):
    rows: list


PLAN = Plan([])


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    PLAN.rows.append(0)
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), len(PLAN.rows))
    return out


def replacement_func():
    return fused
