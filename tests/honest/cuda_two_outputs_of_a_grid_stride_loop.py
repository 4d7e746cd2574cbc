# expect: ok
# task: two_outputs
# gpu
"""A persistent grid, a loop over the rest, and two outputs."""

import torch
from passagent.kernels import cuda_kernel

KERNEL = cuda_kernel(
    """
extern "C" __global__ void add_sigmoid(float* total, float* gate, const float* x, const float* y, unsigned int n) {
  for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    total[i] = x[i] + y[i];
    gate[i] = 1.0f / (1.0f + expf(-total[i]));
  }
}""",
    "add_sigmoid",
)


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    total, gate = torch.empty_like(x), torch.empty_like(x)
    blocks = torch.cuda.get_device_properties(x.device).multi_processor_count
    KERNEL[(blocks, 1, 1), 256](total, gate, x, y, x.numel())
    return total, gate


def replacement_func():
    return fused
