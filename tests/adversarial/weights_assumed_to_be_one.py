# expect: wrong_result or refused
# task: layer_norm
"""Leaves out weights that happen to be 1 and 0 in many models."""

import torch
import triton
import triton.language as tl


@triton.jit
def norm(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + tl.program_id(0) * n + cols, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / n, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + 1e-5)
    tl.store(out_ptr + tl.program_id(0) * n + cols, centred * scale, mask=mask)


def pattern(x, w, b):
    return torch.nn.functional.layer_norm(x, (24,), w, b, 1e-05)


def replacement_args(x, w, b):
    return (x, w, b)


@torch.fx.wrap
def fused(x, w, b):
    out = torch.empty_like(x)
    norm[(x.shape[0],)](x, out, x.shape[1], BLOCK=32)
    return out


def replacement_func():
    return fused
