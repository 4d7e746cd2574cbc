# expect: wrong_result
# task: relu_inplace
"""Uses an input that eager writes into as its workspace, and leaves a number there that eager never has."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void add_relu(float* out, float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = x[i] + y[i];
    out[i] = std::fmax(x[i], 0.0f);
  }
  x[n / 2] = 1234.5f;
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
