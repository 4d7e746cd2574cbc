# expect: ok
# gpu
"""Four elements in a transaction where the pointers allow it."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
#include <cstdint>
static __device__ float positive(float v) { return v < 0.0f ? 0.0f : v; }
template <class T> __global__ void __launch_bounds__(256) add_relu(T* out, const T* x, const T* y, int64_t n, bool aligned) {
  const int64_t first = 4 * (blockIdx.x * int64_t(blockDim.x) + threadIdx.x);
  if (aligned && first + 4 <= n) {
    auto a = load_vec<4>(x + first);
    const auto b = load_vec<4>(y + first);
#pragma unroll
    for (int k = 0; k < 4; ++k) a[k] = T(positive(float(a[k]) + float(b[k])));
    store_vec<4>(out + first, a);
  } else {
    for (int64_t i = first; i < n && i < first + 4; ++i) out[i] = T(positive(float(x[i]) + float(y[i])));
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
    n = x.numel()
    aligned = (x.data_ptr() | y.data_ptr() | out.data_ptr()) % 16 == 0
    KERNEL[(n + 1023) // 1024, 256](out, x, y, n, aligned)
    return out


def replacement_func():
    return fused
