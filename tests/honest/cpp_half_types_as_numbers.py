# expect: ok
# task: softmax
"""Uses the half types like any number: limits, constants, bits, in-place arithmetic."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <bit>
#include <limits>
#include <type_traits>
template <class T> static constexpr T HALF = T(0.5f);
template <class T> static bool is_negative(T x) {
  using bits_t = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  const auto bits = std::bit_cast<bits_t>(x);
  return bits >> (8 * sizeof(T) - 1) && float(std::bit_cast<T>(bits)) != 0.0f;
}
template <class T> void softmax(T* out, const T* x, int64_t rows, int64_t n) {
  static_assert(float(HALF<T>) == 0.5f && std::numeric_limits<T>::epsilon() < 0.01f);
  for (int64_t r = 0; r < rows; ++r, x += n, out += n) {
    T top = -std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < n; ++i) top = std::max(top, x[i]);
    if (top == std::numeric_limits<T>::lowest() && !is_negative(top)) return;
    top *= HALF<T>;
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
      T scaled = x[i];
      scaled *= HALF<T>;
      sum += std::exp(float(scaled) - float(top));
    }
    for (int64_t i = 0; i < n; ++i) {
      T scaled = x[i];
      scaled *= HALF<T>;
      out[i] = std::exp(float(scaled) - float(top)) / sum;
    }
  }
}""",
    "softmax",
)


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel() // x.shape[-1], x.shape[-1])
    return out


def replacement_func():
    return fused
