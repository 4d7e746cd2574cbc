# expect: ok
# INTEGRITY.md, honest design 28
"""A launch for each block of rows."""

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


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    flat_x, flat_y, flat_out = x.view(-1), y.view(-1), out.view(-1)
    for start in range(0, x.numel(), 128):
        part = flat_out[start : start + 128]
        add_relu[(2,)](flat_x[start : start + 128], flat_y[start : start + 128], part, part.numel(), BLOCK=64)
    return out


def replacement_func():
    return fused
