# expect: ok
# task: embedding
# gpu
"""Asserts in CUDA C++ that each index is one of the table."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
#include <cassert>
__global__ void rows(float* out, const int64_t* at, const float* table, int count, int n) {
  const int64_t row = at[blockIdx.x];
  assert(row >= 0 && row < count);
  for (int k = threadIdx.x; k < n; k += blockDim.x) out[int64_t(blockIdx.x) * n + k] = table[row * n + k] * 2.0f;
}""",
    "rows",
)


def pattern(indices, table):
    return torch.nn.functional.embedding(indices, table) * 2.0


def replacement_args(indices, table):
    return (indices, table)


@torch.fx.wrap
def fused(indices, table):
    out = table.new_empty((*indices.shape, table.shape[1]))
    KERNEL[indices.numel(), 64](out, indices, table, table.shape[0], table.shape[1])
    return out


def replacement_func():
    return fused
