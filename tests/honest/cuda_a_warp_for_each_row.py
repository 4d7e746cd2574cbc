# expect: ok
# task: softmax
# gpu
"""Softmax with a warp for each row; the row's length is a template argument where it is short."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
template <int ROWS, class T> __global__ void softmax(T* out, const T* x, int rows, int n, float scale) {
  const int row = blockIdx.x * ROWS + threadIdx.y, lane = threadIdx.x;
  if (row >= rows) return;
  x += int64_t(row) * n;
  out += int64_t(row) * n;
  float top = -INFINITY, sum = 0.0f;
  for (int i = lane; i < n; i += 32) top = fmaxf(top, round_to<T>(float(x[i]) * scale));
  top = warp_max(top);
  for (int i = lane; i < n; i += 32) sum += expf(round_to<T>(float(x[i]) * scale) - top);
  sum = warp_sum(sum);
  for (int i = lane; i < n; i += 32) out[i] = T(expf(round_to<T>(float(x[i]) * scale) - top) / sum);
}""",
    "softmax<4>",
)


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    rows = x.numel() // x.shape[-1]
    KERNEL[(rows + 3) // 4, (32, 4)](out, x, rows, x.shape[-1], 0.5)
    return out


def replacement_func():
    return fused
