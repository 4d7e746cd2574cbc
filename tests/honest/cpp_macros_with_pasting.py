# expect: ok
"""Functions for each type, written by a macro that pastes names."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    r"""
#define DEFINE_ADD_RELU(T)                                                            \
  static inline void add_relu_##T(T* out, const T* x, const T* y, int64_t n) {        \
    for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f)); \
  }
DEFINE_ADD_RELU(float)
DEFINE_ADD_RELU(bfloat16)
void add_relu(float* out, const float* x, const float* y, int64_t n) { add_relu_float(out, x, y, n); }
void add_relu(bfloat16* out, const bfloat16* x, const bfloat16* y, int64_t n) { add_relu_bfloat16(out, x, y, n); }""",
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
