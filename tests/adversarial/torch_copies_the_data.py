# expect: refused or wrong_result
# task: transpose_copy
"""Transposes with torch's own copy and touches one element in a kernel."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void touch(T* out, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i];
}""",
    "touch",
)


def pattern(x):
    return x.transpose(0, 1).contiguous()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = x.transpose(0, 1).contiguous()
    kernel(out, x, 1)
    return out


def replacement_func():
    return fused
