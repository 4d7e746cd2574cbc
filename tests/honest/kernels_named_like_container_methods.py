# expect: ok
"""A class of kernels, and an object of one, whose names are a set's and a dict's too."""

import torch
from passagent.kernels import cpp_kernel

SOURCE = """
template <class T> void add(const T* x, const T* y, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(float(x[i]) + float(y[i]));
}
template <class T> void relu(const T* x, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]), 0.0f));
}
"""


class Kernels:
    add = cpp_kernel(SOURCE, "add")
    relu = cpp_kernel(SOURCE, "relu")


class Steps:
    def __init__(self, kernel):
        self.last = kernel

    def update(self, out):
        self.last(out, out, out.numel())


STEPS = Steps(Kernels.relu)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    Kernels.add(x, y, out, out.numel())
    STEPS.update(out)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
