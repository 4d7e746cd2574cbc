# expect: ok
# task: mean
"""A sum by halves, which calls itself."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> static float squares(const T* x, int64_t n) {
  if (n > 8) return squares(x, n / 2) + squares(x + n / 2, n - n / 2);
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += round_to<T>(float(x[i]) * float(x[i]));
  return sum;
}
template <class T> void mean_square(T* out, const T* x, int64_t rows, int64_t n) {
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) out[r] = T(squares(x + r * n, n) / n);
}""",
    "mean_square",
)


def pattern(x):
    return (x * x).mean(-1, keepdim=True)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((x.shape[0], 1), dtype=x.dtype, device=x.device)
    KERNEL(out, x, x.shape[0], x.shape[1])
    return out


def replacement_func():
    return fused
