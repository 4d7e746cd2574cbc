# expect: ok
# task: gather_table
# gpu
"""A constant table, a namespace of helpers and a macro."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
#include <math_constants.h>
__constant__ float weights[2] = {0.5f, 0.5f};
#define CLAMP(i, n) ((i) < (n) ? (i) : (n) - 1)
namespace detail {
template <class T> __device__ __forceinline__ float pair(const T* x, int64_t i) {
  return load_f32(x + 2 * i) * weights[i & 1] + load_f32(x + 2 * i + 1) * weights[(i + 1) & 1];
}
}  // namespace detail
template <class T> __global__ void pool(T* out, const T* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) store_f32(out + i, detail::pair(x, CLAMP(i, n)));
}""",
    "pool",
)


def pattern(x):
    return torch.nn.functional.avg_pool1d(x.reshape(8, 8), 2)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((8, 4), dtype=x.dtype, device=x.device)
    KERNEL[1, 32](out, x, out.numel())
    return out


def replacement_func():
    return fused
