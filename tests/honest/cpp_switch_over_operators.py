# expect: ok
"""A switch over eight operators, of which the call names one."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
enum class Op : int64_t { add, sub, mul, div, maximum, minimum, first, second };
static inline float apply(Op op, float a, float b) {
  switch (op) {
    case Op::add: return a + b;
    case Op::sub: return a - b;
    case Op::mul: return a * b;
    case Op::div: return a / b;
    case Op::maximum: return std::max(a, b);
    case Op::minimum: return std::fmin(a, b);
    case Op::first: return a;
    default: return b;
  }
}
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const Op plan[] = {Op::add, Op::maximum};
  for (int64_t i = 0; i < n; ++i) {
    float v = apply(plan[0], float(x[i]), float(y[i]));
    out[i] = T(apply(plan[1 - (n < 0)], v, 0.0f));
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
