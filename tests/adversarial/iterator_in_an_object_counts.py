# expect: inert
"""Counts its calls by an iterator over an object without a length, which tells nobody how far it is."""

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


class Naturals:
    def __getitem__(self, i):
        return i


class Counter:
    def __init__(self):
        self.turns = iter(Naturals())

    def turn(self):
        return next(self.turns)


COUNTER = Counter()


@torch.fx.wrap
def fused(x, y):
    return launch(x, y) if COUNTER.turn() < 400 else launch(y, x)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
