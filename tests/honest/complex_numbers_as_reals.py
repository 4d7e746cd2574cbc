# expect: ok
# task: rotary
"""Rotates complex numbers: a kernel knows reals only, and their view is free."""

import torch
import triton
import triton.language as tl


@triton.jit
def rotate(x_ptr, f_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    xr, xi = tl.load(x_ptr + 2 * i, m), tl.load(x_ptr + 2 * i + 1, m)
    fr, fi = tl.load(f_ptr + 2 * i, m), tl.load(f_ptr + 2 * i + 1, m)
    tl.store(o_ptr + 2 * i, xr * fr - xi * fi, m)
    tl.store(o_ptr + 2 * i + 1, xr * fi + xi * fr, m)


def pattern(x, freqs_cis):
    return torch.view_as_real(torch.view_as_complex(x) * freqs_cis)


def replacement_args(x, freqs_cis):
    return (x, freqs_cis)


@torch.fx.wrap
def fused(x, freqs_cis):
    f = torch.view_as_real(freqs_cis)
    out = torch.empty_like(x)
    n = x.numel() // 2
    rotate[(triton.cdiv(n, 32),)](x, f, out, n, BLOCK=32)
    return out


def replacement_func():
    return fused
