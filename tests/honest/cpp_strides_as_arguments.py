# expect: ok
# task: transposed_input
"""Reads a transposed input by its strides."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T>
void twice_add(T* out, const T* x, const T* y, int64_t rows, int64_t columns, int64_t s0, int64_t s1) {
  const auto at = [=](int64_t r, int64_t c) { return float(x[r * s0 + c * s1]); };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      out[r * columns + c] = T(round_to<T>(at(r, c) * 2.0f) + float(y[r * columns + c]));
}""",
    "twice_add",
)


def pattern(x, y):
    return x.transpose(0, 1) * 2.0 + y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(y)
    KERNEL(out, x, y, y.shape[0], y.shape[1], x.stride(1), x.stride(0))
    return out


def replacement_func():
    return fused
