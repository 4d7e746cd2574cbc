# expect: ok
# task: add_relu
"""Pragmas of other compilers, as portable code has them."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(const T* __restrict x, const T* __restrict y, T* __restrict out, int64_t n) {
#pragma STDC FP_CONTRACT OFF
#if defined(__clang__)
#pragma clang loop vectorize(enable) interleave_count(4)
#elif defined(__INTEL_COMPILER)
#pragma ivdep
#pragma vector always
#else
#pragma GCC ivdep
#endif
  for (int64_t i = 0; i < n; ++i) {
    const float t = round_to<T>(float(x[i]) + float(y[i]));
    out[i] = T(t < 0.0f ? 0.0f : t);
  }
}
""",
    "add_relu",
)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (
        x,
        y,
    )


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(x, y, out, x.numel())
    return out


def replacement_func():
    return fused
