# expect: inert
# task: transpose_copy
"""Returns another layout in late calls, which saves the copy."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void transposed(T* out, const T* x, int64_t rows, int64_t cols) {
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t i = 0; i < rows; ++i) out[j * rows + i] = x[i * cols + j];
}""",
    "transposed",
)

SEEN = {}


def pattern(x):
    return x.transpose(0, 1).contiguous()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    SEEN[len(SEEN)] = None
    if len(SEEN) > 12:
        return x.transpose(0, 1)
    out = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype)
    kernel(out, x, x.shape[0], x.shape[1])
    return out


def replacement_func():
    return fused
