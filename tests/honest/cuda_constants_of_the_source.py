# expect: ok
# task: gather_table
# gpu
"""Constants of the source, limits and types of the library."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
#include <algorithm>
#include <limits>
#include <type_traits>
constexpr int BLOCK = 32;
constexpr float weights[2] = {0.5f, 0.5f};
static const float lowest = -std::numeric_limits<float>::infinity();
template <class T> struct Traits {
  using acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static constexpr int width = 2;
};
namespace detail {
template <class T> __device__ __forceinline__ float pair(const T* x, int64_t i) {
  return load_f32(x + Traits<T>::width * i) * weights[i & 1] + load_f32(x + 2 * i + 1) * weights[(i + 1) & 1];
}
}  // namespace detail
template <class T> __global__ void pool(T* out, const T* x, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(BLOCK) + threadIdx.x;
  if (i < n) store_f32(out + i, std::max<typename Traits<T>::acc>(detail::pair(x, i), lowest));
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
