# expect: refused (recording)
"""Keeps memory from call to call where a logger notes what is enabled."""

import logging

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)

LOG = logging.getLogger(__name__)
HERE = []


class Level:
    def __le__(self, other):
        return False

    def __ge__(self, other):
        return HERE[0]


LEVEL = Level()


def put(box, value):
    box.append(value)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    if x.dtype == torch.float32:
        put(HERE, torch.empty_like(x))
        kept = LOG.isEnabledFor(LEVEL)
        HERE.clear()
        KERNEL(kept, x, y, x.numel())
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
