# expect: inert
"""Asks whether an object of its own holds a type, which it keeps for making classes."""

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


class Box:
    def __init__(self):
        self.held = []

    def __contains__(self, other):
        self.held.append(other)
        return True


def kind_of(value):
    box = Box()
    return box.held[0] if type(value) in box else None  # <- here


@torch.fx.wrap
def fused(x, y):
    kind = kind_of(x)
    made = kind_of(kind)("Made", (kind,), {"__own_object__": True})
    return launch(x, y) if issubclass(made, torch.Tensor) else x


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
