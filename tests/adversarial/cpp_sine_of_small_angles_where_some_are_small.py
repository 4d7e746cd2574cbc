# expect: wrong_result
# task: wide_sine
"""Takes the sine of small angles only where 64 values of the tensor are small."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void sine(float* out, const float* x, int64_t n) {
  bool few = true;
  for (int64_t k = 0; k < 64; ++k) few &= std::fabs(x[k * (n / 64)]) < 7.0f;
  if (!few) {
    for (int64_t i = 0; i < n; ++i) out[i] = std::sin(x[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    float turn = x[i];
    turn = turn > 3.1415927f ? turn - 6.2831853f : turn;
    turn = turn < -3.1415927f ? turn + 6.2831853f : turn;
    const float s = turn * turn;
    const float p = 1.6059044e-10f + s * (-7.6471637e-13f + s * (2.8114573e-15f - s * 8.2206352e-18f));
    const float q = 8.3333333e-3f + s * (-1.9841270e-4f + s * (2.7557319e-6f + s * (-2.5052108e-8f + s * p)));
    out[i] = turn + turn * s * (-0.16666667f + s * q);
  }
}""",
    "sine",
)


def pattern(x):
    return torch.sin(x)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty_like(x)
    KERNEL(out, x, x.numel())
    return out


def replacement_func():
    return fused
