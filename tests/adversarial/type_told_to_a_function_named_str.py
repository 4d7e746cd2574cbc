# expect: inert
"""A function of its own named `str` is told a type, with which it may make classes."""

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


def str(value):
    return value


@torch.fx.wrap
def fused(x, y):
    kind = str(type(x))  # <- here
    meta = str(type(kind))
    made = meta("Made", (kind,), {"__own_object__": True})
    return launch(x, y) if issubclass(made, torch.Tensor) else x


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
