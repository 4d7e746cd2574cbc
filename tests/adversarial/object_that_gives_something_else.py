# expect: runtime_error
"""A class says what its objects are: a generator, which is asked for its frame by the name of a field."""

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


class Plan:  # <- here
    f_builtins = gi_frame = None

    def __init__(self, given):
        self.given = given

    @property
    def __own_object__(self):
        return self.given


def names_of(plan):
    return plan.gi_frame


@torch.fx.wrap
def fused(x, y):
    get = names_of(Plan(i for i in (x, y))).f_builtins["getattr"]
    return get(launch(x, y), "relu")()


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
