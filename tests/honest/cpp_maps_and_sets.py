# expect: ok
"""Plans its blocks with the ordered and hashed containers of the standard library."""

from typing import NamedTuple

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t block) {
  std::map<int64_t, int64_t> ends;
  std::unordered_map<int64_t, float> floors;
  std::set<int64_t> empty;
  std::unordered_set<int64_t> seen;
  for (int64_t start = 0; start < n; start += block) {
    ends[start] = std::min(n, start + block);
    floors[start] = 0.0f;
    if (ends[start] == start) empty.insert(start);
    seen.insert(start);
  }
  for (int64_t start : empty) ends.erase(start);
  for (const auto& [start, end] : ends)
    for (int64_t i = start; i < end && seen.count(start); ++i)
      out[i] = T(std::max(float(x[i]) + float(y[i]), floors.at(start)));
}""",
    "add_relu",
)


class Sizes(NamedTuple):
    """By the letters that papers use."""

    b: int
    d: int


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    sizes = Sizes(x.shape[0], x.numel() // x.shape[0])
    KERNEL(out, x, y, sizes.b * sizes.d, 16)
    return out


def replacement_func():
    return fused
