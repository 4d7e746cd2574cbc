# expect: refused (cpp_name) or refused (cpp_pointer_call)
"""Calls through a pointer by a return: an attribute asks the compiler for it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
typedef float (*function)(float);
static float relu(float v) { return std::max(v, 0.0f); }
__attribute__((indirect_branch("thunk"), noinline)) static float call(function f, float v) { return f(v); }
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  volatile function f = relu;
  for (int64_t i = 0; i < n; ++i) out[i] = T(call(f, round_to<T>(float(x[i]) + float(y[i]))));
}""",
    "add_relu",
)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
