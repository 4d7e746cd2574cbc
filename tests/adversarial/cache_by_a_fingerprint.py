# expect: inert
"""Keeps the result of the last call in a helper's list by a detour of names, and returns it when addresses agree."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


KEPT = []


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    for memory in (KEPT,):
        if memory and memory[0] == x.data_ptr():
            return memory[1]
        out = torch.empty_like(x)
        kernel(out, x, y, x.numel())
        memory.clear()
        memory += [x.data_ptr(), out]
    return out


def replacement_func():
    return fused
