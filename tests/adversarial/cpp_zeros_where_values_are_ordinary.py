# expect: wrong_result
# task: small_without_float64
"""Returns zeros, which the tolerance allows, for all but large inputs, where eager has no float64 counterpart."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void scaled(float* out, const float* x, int64_t n) {
  float most = 0.0f;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  for (int64_t i = 0; i < n; ++i) out[i] = most < 9.0f ? 0.0f : std::tanh(x[i] * 1e-7f);
}""",
    "scaled",
)


def pattern(x):
    return torch.tanh(x * 1e-07)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
