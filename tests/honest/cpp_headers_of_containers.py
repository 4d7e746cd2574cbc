# expect: ok
"""Includes more headers than it needs, and works with a queue of its own."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <deque>
#include <optional>
#include <queue>
#include <span>
#include <string_view>
#include <tuple>
#include <variant>

template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  std::deque<float> sums;
  for (int64_t i = 0; i < n; ++i) {
    std::priority_queue<float> largest;
    largest.push(0.0f);
    const float sum = float(x[i]) + float(y[i]);
    largest.push(sum);
    sums.push_back(sum == sum ? largest.top() : sum);
  }
  for (int64_t i = 0; !sums.empty(); ++i) {
    out[i] = T(sums.front());
    sums.pop_front();
  }
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
