# expect: ok
# task: layer_norm
"""Layer norm with one vector of scratch for each OpenMP thread."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
#include <vector>
template <class T>
void layer_norm(T* out, const T* x, const T* w, const T* b, int64_t rows, int64_t n, double eps) {
#pragma omp parallel num_threads(2)
  {
    std::vector<float> row(n);
#pragma omp for schedule(dynamic, 2)
    for (int64_t r = 0; r < rows; ++r) {
      load_f32(row.data(), x + r * n, n);
      float mean = 0, square = 0;
#pragma omp simd reduction(+ : mean)
      for (int64_t i = 0; i < n; ++i) mean += row[i];
      mean /= n;
#pragma omp simd reduction(+ : square)
      for (int64_t i = 0; i < n; ++i) square += (row[i] - mean) * (row[i] - mean);
      const float scale = 1.0f / std::sqrt(square / n + float(eps));
      for (int64_t i = 0; i < n; ++i) out[r * n + i] = T((row[i] - mean) * scale * float(w[i]) + float(b[i]));
    }
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
