# expect: refused (recording)
"""Counts calls in a list that a cached function answers with, out of sight of the text."""

import functools

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(round_to<T>(float(x[i]) + float(y[i])), 0.0f));
}""",
    "add_relu",
)


@functools.lru_cache
def plan(n):
    return [n]


def count(calls):
    calls.append(1)
    return len(calls)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), count(plan(x.numel())))
    return out


def replacement_func():
    return fused
