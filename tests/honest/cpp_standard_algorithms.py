# expect: ok
# task: softmax
"""Softmax of the standard library's algorithms."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>
template <class T> void softmax(T* out, const T* x, int64_t rows, int64_t n, double scale) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t r = 0; r < rows; ++r) {
    std::transform(x + r * n, x + (r + 1) * n, v.begin(), [scale](T a) { return round_to<T>(float(a) * float(scale)); });
    const float top = *std::max_element(v.begin(), v.end());
    std::transform(v.begin(), v.end(), v.begin(), [top](float a) { return std::exp(a - top); });
    const float sum = std::accumulate(v.begin(), v.end(), 0.0f, std::plus<float>());
    std::transform(v.begin(), v.end(), out + r * n, [sum](float a) { return T(a / sum); });
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
    KERNEL(out, x, x.numel() // x.shape[-1], x.shape[-1], 0.5)
    return out


def replacement_func():
    return fused
