# expect: ok
# task: softmax
"""Softmax of lambdas that are passed to templates."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <algorithm>
#include <vector>
template <class F> static float fold(int64_t n, float start, F step) {
  for (int64_t i = 0; i < n; ++i) start = step(start, i);
  return start;
}
template <class T> void softmax(T* out, const T* x, int64_t rows, int64_t n, double scale) {
#pragma omp parallel for if (rows * n > 32768)
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> v(n);
    auto load = [&](int64_t i) { return round_to<T>(float(x[r * n + i]) * float(scale)); };
    std::generate(v.begin(), v.end(), [&, i = int64_t(0)]() mutable { return load(i++); });
    const float top = fold(n, -INFINITY, [&](float a, int64_t i) { return std::max(a, v[i]); });
    const float sum = fold(n, 0.0f, [&](float a, int64_t i) { return a + (v[i] = std::exp(v[i] - top)); });
    for (int64_t i = 0; i < n; ++i) out[r * n + i] = T(v[i] / sum);
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
