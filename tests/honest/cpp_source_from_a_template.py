# expect: ok
# task: broadcast
"""Fills in its source with format."""

from string import Template

import torch
from passagent.kernels import cpp_kernel

_TEMPLATE = """
#include <cstdint>
void add_mul(const float* x, const float* y, const float* z, float* out, int64_t rows, int64_t cols) {{
    const float s = *z;
    #pragma omp parallel for collapse(2) schedule(static, {chunk})
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
            out[r * cols + c] = (x[r * cols + c] + y[c]) * s;
}}
"""
_k = cpp_kernel(_TEMPLATE.format(chunk=64), "add_mul")


def fused(x, y, z):
    out = torch.empty_like(x)
    _k(x, y, z, out, *x.shape)
    return out


def pattern(x, y, z):
    t = x + y
    return t * z


def replacement_args(x, y, z):
    return (x, y, z)


def replacement_func():
    return fused
