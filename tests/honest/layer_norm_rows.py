# expect: ok
# task: layer_norm
"""A layer norm with weights, a program for each row."""

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n
    centred = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / n + eps)
    w = tl.load(w_ptr + cols, mask=mask)
    b = tl.load(b_ptr + cols, mask=mask)
    tl.store(out_ptr + row * n + cols, centred * rstd * w + b, mask=mask)


def pattern(x, w, b):
    return torch.nn.functional.layer_norm(x, (24,), w, b, 1e-05)


def replacement_args(x, w, b):
    return (x, w, b)


@torch.fx.wrap
def fused(x, w, b):
    n = x.shape[-1]
    out = torch.empty_like(x)
    layer_norm[(x.numel() // n,)](x, w, b, out, n, 1e-5, BLOCK=triton.next_power_of_2(n))
    return out


def replacement_func():
    return fused
