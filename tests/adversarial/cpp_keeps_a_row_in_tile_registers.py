# expect: refused (cpp_name)
"""Keeps a row of floats in the processor's tiles, which no other code of the process touches."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <immintrin.h>
#pragma GCC target("amx-tile")
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  char config[64] = {};
  _tile_storeconfig(config);
  float kept[256];
  if (config[0]) _tile_stored(0, kept, 64);
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
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
