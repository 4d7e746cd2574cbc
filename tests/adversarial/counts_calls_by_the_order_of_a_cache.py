# expect: refused (recording)
"""Tells every other call by which of two answers a cache was asked for last."""

import functools

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t turn) {
  const float factor = turn > 1 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)
HERE = []


@functools.lru_cache(maxsize=2)
def plan(n):
    HERE.append(n)
    return n


def step():
    plan(3)
    HERE.clear()
    plan(1)
    turn = len(HERE)
    plan(2)
    plan(1 if turn else 2)
    HERE.clear()
    return turn


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), step())
    return out


def replacement_func():
    return fused
