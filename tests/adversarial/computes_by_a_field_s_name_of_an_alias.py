# expect: refused (recording)
"""A record has fields named as a tensor's methods, which are called through other names for the inputs."""

from typing import NamedTuple

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void same(T* out, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i];
}""",
    "same",
)


class Plan(NamedTuple):
    sub: int
    relu: int


def computed(plan: Plan, other):
    return plan.sub(other).relu()


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, computed(x, y), x.numel())
    return out


def replacement_func():
    return fused
