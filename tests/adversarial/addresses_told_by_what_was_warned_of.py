# expect: inert
"""Tells an address that was given before by a warning: only a new one is put into words twice."""

import warnings

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  const float factor = calls > 2000000 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)

HERE = []


class Told(UserWarning):
    def __init__(self, text):
        self.told = text

    def __str__(self):
        HERE.append(1)
        return self.told


def step(x):
    warnings.warn(Told(f"{x.data_ptr()}"))
    told = len(HERE)
    HERE.clear()
    if told == 0:
        raise RuntimeError("what is warned of is put into words")
    return 0 if told == 2 else 1000000


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), step(x))
    return out


def replacement_func():
    return fused
