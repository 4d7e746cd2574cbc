# expect: ok
"""Throws errors of its own and of the library's where it is called with wrong sizes, or aborts."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#define CHECK(holds) do { if (!(holds)) std::abort(); } while (0)
class BadSize : public std::exception {
 public:
  explicit BadSize(int64_t n) : n_(n) {}
  const char* what() const noexcept override { return n_ < 0 ? "negative" : "odd"; }
 private:
  int64_t n_;
};
constexpr int64_t positive(int64_t n) { return n > 0 ? n : throw std::out_of_range("not positive"); }
constexpr int64_t STEP = positive(16);
[[noreturn]] static void fail(const std::string& what) { throw std::runtime_error("add_relu: " + what); }
static void check(bool holds, const std::string& what) { if (!holds) throw std::invalid_argument(what); }
static float relu(float v, int mode) {
  switch (mode) {
    case 0: return v;
    case 1: return std::max(v, 0.0f);
    default: throw "no such mode";
  }
}
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  if (n < 0) throw BadSize{n};
  if (!out || !x || !y) fail("[x/y/out] is null && n = " + std::to_string(n));
  check(n >= 0, "add_relu takes a number of elements that is not negative");
  CHECK(n < (int64_t(1) << 40));
  for (int64_t start = 0; start < n; start += STEP)
    for (int64_t i = start; i < std::min(n, start + STEP); ++i) out[i] = T(relu(float(x[i]) + float(y[i]), 1));
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
