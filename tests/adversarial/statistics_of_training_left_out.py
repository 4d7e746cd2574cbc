# expect: wrong_result
# task: statistics_in_training
"""Normalises by the batch and leaves the running statistics as they were."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void norm(float* out, const float* x, int64_t rows, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < rows; ++i) sum += x[i * n + k];
    const double mean = sum / rows;
    for (int64_t i = 0; i < rows; ++i) squares += (x[i * n + k] - mean) * (x[i * n + k] - mean);
    const double scale = 1 / std::sqrt(squares / rows + 1e-5);
    for (int64_t i = 0; i < rows; ++i) out[i * n + k] = float((x[i * n + k] - mean) * scale);
  }
}""",
    "norm",
)


def pattern(x, mean, var):
    return torch.nn.functional.batch_norm(x, mean, var, None, None, True, 0.1, 1e-05)


def replacement_args(x, mean, var):
    return (
        x,
        mean,
        var,
    )


@torch.fx.wrap
def fused(x, mean, var):
    out = torch.empty_like(x)
    KERNEL(out, x, x.shape[0], x.shape[1])
    return out


def replacement_func():
    return fused
