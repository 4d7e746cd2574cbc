# expect: ok
# task: layer_norm
"""A structure with operators, and an OpenMP reduction declared for it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
struct Moments {
  double sum = 0.0, square = 0.0;
  Moments& operator+=(const Moments& other) {
    sum += other.sum;
    square += other.square;
    return *this;
  }
};
#pragma omp declare reduction(add : Moments : omp_out += omp_in)
template <class T>
void layer_norm(T* out, const T* x, const T* w, const T* b, int64_t rows, int64_t n, double eps) {
  for (int64_t r = 0; r < rows; ++r) {
    Moments m;
#pragma omp parallel for reduction(add : m) if (n > 4096)
    for (int64_t i = 0; i < n; ++i) m += Moments{double(x[r * n + i]), double(x[r * n + i]) * double(x[r * n + i])};
    const double mean = m.sum / n, scale = 1.0 / std::sqrt(m.square / n - mean * mean + eps);
    for (int64_t i = 0; i < n; ++i)
      out[r * n + i] = T(float((double(x[r * n + i]) - mean) * scale * double(w[i]) + double(b[i])));
  }
}""",
    "layer_norm",
)


def pattern(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (24,), weight, bias, 1e-05)


def replacement_args(x, weight, bias):
    return (x, weight, bias)


@torch.fx.wrap
def fused(x, weight, bias):
    out = torch.empty_like(x)
    KERNEL(out, x, weight, bias, x.numel() // x.shape[-1], x.shape[-1], 1e-05)
    return out


def replacement_func():
    return fused
