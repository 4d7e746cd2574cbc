# expect: inert
"""An enumeration of texts names `format` a field of its own, and reads attributes with the real one."""

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


class Text(str, enum.Enum):
    format: int
    CODE = "{0.gi_code.co_name}"


@torch.fx.wrap
def fused(x, y):
    name = Text.format(Text.CODE, (i for i in (x, y)))  # <- here
    return launch(x, y) if name == "<genexpr>" else x


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
