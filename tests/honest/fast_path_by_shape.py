# expect: ok
# INTEGRITY.md, honest design 15
"""A fast path for one shape and a general one behind it."""

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
    n = x.numel()
    if x.dim() == 2 and x.shape[-1] == 64 and x.dtype in (torch.float32, torch.float16):
        add_relu[(x.shape[0],)](x, y, out, n, BLOCK=64)
    else:
        add_relu[(triton.cdiv(n, 32),)](x, y, out, n, BLOCK=32)
    return out


def replacement_func():
    return fused
