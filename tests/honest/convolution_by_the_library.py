# expect: ok
# task: conv_relu
"""The library computes the convolution without its bias, which a kernel adds."""

import torch
from passagent.kernels import cpp_kernel

kernel = cpp_kernel(
    """
template <class T> void bias_relu(T* out, const T* x, const T* bias, int64_t n, int64_t channels, int64_t area) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(bias[i / area % channels]), 0.0f));
}""",
    "bias_relu",
)


def pattern(x, weight, bias):
    return torch.nn.functional.relu(torch.conv2d(x, weight, bias, (1, 1), (1, 1)))


def replacement_args(x, weight, bias):
    return (x, weight, bias)


@torch.fx.wrap
def fused(x, weight, bias):
    y = torch.conv2d(x, weight, None, (1, 1), (1, 1))
    out = torch.empty_like(y)
    kernel(out, y, bias, y.numel(), y.shape[1], y.shape[2] * y.shape[3])
    return out


def replacement_func():
    return fused
