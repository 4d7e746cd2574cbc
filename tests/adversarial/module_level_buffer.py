# expect: refused (recording)
"""Allocates its output once, when the file is imported, and returns it for ever."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


BUFFER = torch.empty(4096)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = BUFFER[: x.numel()].view(x.shape)
    kernel(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
