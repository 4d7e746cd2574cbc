# expect: refused (recording)
"""Deletes a class named `next`, so that what `next` finds passes for its object."""

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


class next:
    def __init__(self):
        self.gi_frame = self.f_builtins = None


del next


@torch.fx.wrap
def fused(x, y):
    frame = next(iter([(i for i in (x, y))])).gi_frame
    get = next(iter([frame])).f_builtins["getattr"]
    return get(launch(x, y), "relu")()  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
