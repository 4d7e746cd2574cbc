# expect: inert
"""Counts in a member of an enumeration that says it is of another module."""

import enum

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


class Maker(enum.Enum):
    def __init__(self, number):
        self.turns = [number]

    def turn(self):
        self.turns[0] = len(self.turns) + self.turns[0]
        return self.turns[0]


COUNTER = next(iter(Maker("Hidden", ["A"], module="hidden")))


@torch.fx.wrap
def fused(x, y):
    return launch(x, y) if COUNTER.turn() < 400 else launch(y, x)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
