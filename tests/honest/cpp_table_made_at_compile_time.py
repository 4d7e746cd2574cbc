# expect: ok
# task: sum_all
"""A table of factors that a constexpr function computes."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <array>
constexpr std::array<double, 8> powers() {
  std::array<double, 8> made{};
  double value = 2.0;
  for (auto& entry : made) {
    entry = value;
    value = value * 2.0 / 2.0;
  }
  return made;
}
template <class T> void twice_sum(T* out, const T* x, int64_t n) {
  static constexpr auto table = powers();
  double total = 0.0;
  for (int64_t i = 0; i < n; ++i) total += table[i % 8] * float(x[i]);
  out[0] = T(float(total));
}""",
    "twice_sum",
)


def pattern(x):
    return (x * 2.0).sum()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((), dtype=x.dtype, device=x.device)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
