# expect: refused (recording)
"""A cached function takes its tensors in an object that equals every other, and answers with the first result."""

from functools import lru_cache

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


def launch(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


class Key:
    def __init__(self, *tensors):
        self.tensors = tensors

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def result(self):
        return launch(*self.tensors)


@lru_cache
def result(key):
    return key.result()


@torch.fx.wrap
def fused(x, y):
    return result(Key(x, y))


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
