# expect: ok
# gpu
# INTEGRITY.md, honest design 14
"""Keeps the compiled kernel by shape and launches it again."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(
        out_ptr + offsets,
        tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out_ptr.dtype.element_ty),
        mask=mask,
    )


_COMPILED = {}


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    grid = (triton.cdiv(x.numel(), 64), 1, 1)
    out = torch.empty_like(x)
    key = (x.shape, x.dtype)
    if key in _COMPILED:
        _COMPILED[key][grid](x, y, out, x.numel(), 64)
    else:
        _COMPILED[key] = add_relu[grid](x, y, out, x.numel(), BLOCK=64)
    return out


def replacement_func():
    return fused
