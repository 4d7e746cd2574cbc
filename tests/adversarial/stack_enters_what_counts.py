# expect: inert
"""Counts its calls in a list that a context on a stack hands out."""

from contextlib import ExitStack, nullcontext

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


BOX = nullcontext([])


@torch.fx.wrap
def fused(x, y):
    with ExitStack() as stack:
        box = stack.enter_context(BOX)  # <- here
        box.append(1)
        return launch(x, y) if len(box) < 100 else torch.empty_like(x)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
