# expect: inert
"""Counts its calls by the numbers for which a kernel's plan was asked before."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t calls) {
  const float factor = calls > 1000000 ? 0.5f : 1.0f;
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f) * factor);
}""",
    "add_relu",
)

HERE = []


def _plan(x, number):
    HERE.append(1)
    return {"out": x}, {"n": x.numel()}


PROBE = cpp_kernel(
    """
template <class T> void probe(const T* x, int64_t number, T* out, int64_t n) { out[0] = x[0]; }""",
    "probe",
    _plan,
)


def step(x):
    n = 0
    while not HERE and n < 200:  # so that no call takes long
        n += 1
        PROBE(x, n)
    HERE.clear()
    return n


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel(), step(x))
    return out


def replacement_func():
    return fused
