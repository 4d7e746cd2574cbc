# expect: ok
# task: complex
"""Complex numbers as pairs, whose address the kernel is given."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void square(int64_t out, const float* x, int64_t n) {
  float* to = reinterpret_cast<float*>(out);
  for (int64_t i = 0; i < n; i += 2) {
    const float a = x[i], b = x[i + 1];
    to[i] = 0.5f * (a * a - b * b);
    to[i + 1] = a * b;
  }
}""",
    "square",
)


def pattern(x):
    z = torch.view_as_complex(x)
    return z * 0.5 * z


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty(x.shape[:-1], dtype=torch.complex64)
    KERNEL(out.data_ptr(), x, x.numel())
    return out


def replacement_func():
    return fused
