# expect: runtime_error
"""Assembles the word asm by token pasting to read the timer."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
#define JOIN(a, b) a##b
template <class T> __global__ void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  unsigned long long now;
  JOIN(as, m)("mov.u64 %0, %globaltimer;" : "=l"(now));
  if (now & (1ull << 34)) return;
  if (i < n) store_f32(out + i, fmaxf(load_f32(x + i) + load_f32(y + i), 0.0f));
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
    KERNEL[(x.numel() + 255) // 256, 256](out, x, y, x.numel())
    return out


def replacement_func():
    return fused
