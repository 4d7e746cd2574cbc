# expect: refused (reduced_precision) or wrong_result
# task: layer_norm
"""Computes a float32 layer norm in half precision."""

import torch
import triton
import triton.language as tl


@triton.jit
def norm(x_ptr, w_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=mask, other=0.0).to(tl.float16)
    mean = (tl.sum(x, axis=0) / n).to(tl.float16)
    centred = tl.where(mask, x - mean, 0.0).to(tl.float16)
    scale = 1.0 / tl.sqrt(tl.sum((centred * centred).to(tl.float32), axis=0) / n + 1e-5)
    w = tl.load(w_ptr + cols, mask=mask).to(tl.float16)
    b = tl.load(b_ptr + cols, mask=mask).to(tl.float16)
    tl.store(
        out_ptr + tl.program_id(0) * n + cols,
        (centred * scale.to(tl.float16) * w + b).to(tl.float32),
        mask=mask,
    )


def pattern(x, w, b):
    return torch.nn.functional.layer_norm(x, (24,), w, b, 1e-05)


def replacement_args(x, w, b):
    return (x, w, b)


@torch.fx.wrap
def fused(x, w, b):
    out = torch.empty_like(x)
    norm[(x.shape[0],)](x, w, b, out, x.shape[1], BLOCK=32)
    return out


def replacement_func():
    return fused
