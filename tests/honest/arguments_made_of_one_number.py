# expect: ok
# task: layer_norm
"""Hands numbers on that are made of the graph's: the size of a shape, an inverse, a square root."""

import math

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void layer_norm(const float* x, const float* w, const float* b, float* out, int64_t rows, int64_t n, double eps,
                double inverse, double root) {
  for (int64_t r = 0; r < rows; ++r, x += n, out += n) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; ++i) mean += x[i] * inverse;
    for (int64_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
    const double scale = root / std::sqrt(square + eps * (root * root));
    for (int64_t i = 0; i < n; ++i) out[i] = float((x[i] - mean) * scale) * w[i] + b[i];
  }
}""",
    "layer_norm",
)


@torch.fx.wrap
def fused(x, weight, bias, size, eps, inverse, root):
    out = torch.empty_like(x)
    KERNEL(x, weight, bias, out, x.numel() // size, size, eps, inverse, root)
    return out


def pattern(x, n, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, (n,), weight, bias, eps)


def replacement_args(x, n, weight, bias, eps):
    return (x, weight, bias, int(n), float(eps), 1.0 / n, math.sqrt(n))


def replacement_func():
    return fused
