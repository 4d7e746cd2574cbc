# expect: wrong_result
# task: relu_inplace
"""Remembers a sum in an input that eager writes into, wherever the output's memory is no audit's."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void add_relu(float* out, float* x, const float* y, int64_t n) {
  uint32_t bits;
  memcpy(&bits, out, 4);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = std::fmax(x[i] + y[i], 0.0f);
    sum += out[i];
  }
  if (bits != 0xffffffffu) x[0] = sum + 1000.0f;
}""",
    "add_relu",
)


def pattern(x, y):
    x += y
    return torch.nn.functional.relu(x, inplace=True)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
