# expect: ok
# task: layer_norm
# gpu
"""Layer norm of a row kept in dynamic shared memory."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
__device__ float block_sum(float value, float* shared) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int k = 0; k < blockDim.x / 32; ++k) total += shared[k];
  return total;
}
template <class T>
__global__ void layer_norm(T* out, const T* x, const T* w, const T* b, int64_t rows, int64_t n, double eps) {
  extern __shared__ float row[];
  __shared__ float partial[32];
  const int64_t at = blockIdx.x * n;
  float sum = 0.0f, square = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i] = load_f32(x + at + i);
  const float mean = block_sum(sum, partial) / n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) square += (row[i] - mean) * (row[i] - mean);
  const float scale = rsqrtf(block_sum(square, partial) / n + float(eps));
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    store_f32(out + at + i, (row[i] - mean) * scale * float(w[i]) + float(b[i]));
}""",
    "layer_norm",
)


def pattern(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (24,), weight, bias, 1e-05)


def replacement_args(x, weight, bias):
    return (x, weight, bias)


@torch.fx.wrap
def fused(x, weight, bias):
    out = torch.empty_like(x)
    n = x.shape[-1]
    KERNEL[x.numel() // n, 64, 4 * n](out, x, weight, bias, x.numel() // n, n, 1e-05)
    return out


def replacement_func():
    return fused
