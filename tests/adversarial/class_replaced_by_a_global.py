# expect: refused (recording)
"""Finds out once what an imported class is: a function that returns what it is given."""

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


Frame = None


def never():
    from frames import Frame

    return Frame()


def same(value):
    return value


def settle():
    global Frame
    if Frame is None:
        Frame = same


@torch.fx.wrap
def fused(x, y):
    settle()
    frame = Frame(i for i in (x, y)).gi_frame
    get = Frame(frame).f_builtins["getattr"]
    return get(launch(x, y), "relu")() if x.dim() else never()  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
