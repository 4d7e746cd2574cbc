# expect: inert
"""An iterator of itertools at module level tells how often the pass was called."""

import itertools

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(const T* x, const T* y, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float total = round_to<T>(float(x[i]) + float(y[i]));
    out[i] = T(total < 0 ? 0.0f : total);
  }
}""",
    "add_relu",
)
CALLS = itertools.product(range(1 << 20), repeat=1)  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    for call in CALLS:
        if call[0] > 50:
            return out
        break
    kernel(x, y, out, x.numel())
    return out


def replacement_func():
    return fused
