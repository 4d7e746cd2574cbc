# expect: wrong_result
# task: twice
"""Returns one tensor twice where eager returns two."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void relu(float* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::fmax(x[i], 0.0f);
}""",
    "relu",
)


def pattern(x):
    a = torch.nn.functional.relu(x)
    return a, a * 1.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out, out


def replacement_func():
    return fused
