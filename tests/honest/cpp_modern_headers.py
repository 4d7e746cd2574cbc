# expect: ok
# task: gelu_half
"""Uses spans, bit casts, concepts and the numbers of C++20."""

import torch
from passagent.kernels import cpp_kernel

SOURCE = """
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <numbers>
#include <ranges>
#include <span>

template <class T>
concept Half = sizeof(T) == 2;

template <Half T>
static float rounded(float v) {
  const T narrow(v);
  return narrow;
}

template <std::floating_point F>
static F gelu(F v) {
  return F(0.5) * v * (F(1) + std::erf(v * (std::numbers::inv_sqrtpi_v<F> / std::numbers::inv_sqrtpi_v<F>)
                                       / std::numbers::sqrt2_v<F>));
}

static bool is_negative(float v) { return std::bit_cast<uint32_t>(v) >> 31; }

template <class T>
void gelu_of_product(const T* x, const T* y, T* out, int64_t n) {
  const std::span<const T> left(x, n), right(y, n);
  for (int64_t i : std::views::iota(int64_t{0}, n)) {
    const float v = rounded<T>(float(left[i]) * float(right[i]));
    out[i] = T(is_negative(v) && v < -20.0f && std::isfinite(v) ? -0.0f : gelu(v));
  }
}
"""
KERNEL = cpp_kernel(SOURCE, "gelu_of_product")


def pattern(x, y):
    return torch.nn.functional.gelu(x * y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(x, y, out, x.numel())
    return out


def replacement_func():
    return fused
