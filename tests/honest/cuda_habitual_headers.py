# expect: ok
# gpu
"""Includes headers of the host out of habit, and uses nothing of them."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <iostream>
#include <vector>
template <class T> __global__ void add_relu(T* out, const T* __restrict__ x, const T* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float sum = load_f32(x + i) + load_f32(y + i);
  store_f32(out + i, sum < 0.0f ? 0.0f : sum);
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
    KERNEL[(x.numel() + 127) // 128, 128](out, x, y, x.numel())
    return out


def replacement_func():
    return fused
