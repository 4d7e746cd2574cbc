# expect: refused (recording)
"""Counts its calls in an attribute of an object."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  const float factor = calls > 100000 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)


class Sizes:
    def __init__(self):
        self.step = 0

    def __call__(self):
        self.step += 1
        return self.step


SIZES = Sizes()


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap  # <- here
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), SIZES())
    return out


def replacement_func():
    return fused
