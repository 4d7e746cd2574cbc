# expect: refused (plan)
"""Keeps results in the variable of an enclosing function."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


def make():
    memory = {}

    def run(x, y):
        out = torch.empty_like(x)
        memory[0] = out
        return out

    return run


run = make()


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return run(x, y)


def replacement_func():
    return fused
