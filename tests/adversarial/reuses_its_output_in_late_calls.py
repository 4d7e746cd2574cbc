# expect: inert
"""Allocates in the first calls and reuses one output later: it always computes, and saves the allocation in timed calls."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


SEEN, KEPT = set(), {}


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    for seen, memory in ((SEEN, KEPT),):
        seen.add(len(seen))
        out = torch.empty_like(x) if len(seen) < 12 else memory.setdefault(x.shape, torch.empty_like(x))
    kernel(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
