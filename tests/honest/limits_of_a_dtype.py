# expect: ok
# task: softmax
"""Asks torch.finfo and torch.iinfo once, and reads their limits by a name."""

import contextlib
import textwrap

import torch
from passagent.kernels import cpp_kernel

SINGLE = torch.finfo(torch.float32)
SOURCE = textwrap.dedent(
    """
    template <class T> void softmax(T* out, const T* x, int64_t rows, int64_t cols, double lowest, double tiny) {
      for (int64_t r = 0; r < rows; ++r) {
        float high = float(lowest), sum = 0;
        for (int64_t c = 0; c < cols; ++c) high = std::fmax(high, float(x[r * cols + c]) * 0.5f);
        if (high == float(lowest)) high = -INFINITY;  // all masked
        for (int64_t c = 0; c < cols; ++c) sum += std::exp(float(x[r * cols + c]) * 0.5f - high);
        sum = std::max(sum, float(tiny));
        for (int64_t c = 0; c < cols; ++c)
          out[r * cols + c] = T(std::exp(float(x[r * cols + c]) * 0.5f - high) / sum);
      }
    }"""
)

KERNEL = cpp_kernel(SOURCE, "softmax")


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    sizes = torch.iinfo(torch.int32)
    guard = torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
    assert x.numel() < sizes.max
    assert SINGLE.min < 0 and info.eps > 0
    out = torch.empty_like(x)
    with guard:
        KERNEL(out, x, x.numel() // x.shape[-1], x.shape[-1], max(info.min, SINGLE.min), info.tiny)
    with torch.no_grad() if x.requires_grad else contextlib.nullcontext():
        return out


def replacement_func():
    return fused
