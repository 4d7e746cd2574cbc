# expect: ok
# task: sum_all
"""A sum in long double, which authors write where they mean care."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void twice_sum(T* out, const T* x, int64_t n) {
  long double total = 0.0L;
  for (int64_t i = 0; i < n; ++i) total += 2.0L * float(x[i]);
  out[0] = T(static_cast<float>(total));
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
