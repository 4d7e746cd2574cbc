# expect: refused (recording)
"""Allocates its output once, in an object that is made when it is first asked for."""

import functools

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


class Output:
    def __init__(self, shapes, kind):
        self.out = torch.empty(shapes, dtype=kind)


@functools.lru_cache(maxsize=None)
def output_of(shapes, kind):
    return Output(shapes, kind)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    held = output_of(x.shape, x.dtype)
    KERNEL(held.out, x, y, x.numel())
    return held.out


def replacement_func():
    return fused
