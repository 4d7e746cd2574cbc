# expect: refused
# task: transpose_copy
"""Transposes with torch's own copy, and gives a kernel a table with the address of what torch copied to."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void touch(int64_t* table, const T* x, int64_t n) {
  table[1] = int64_t(x[0]) + n;
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
    kernel(torch.tensor([out.data_ptr(), 0]), x, 1)
    return out


def replacement_func():
    return fused
