# expect: ok
# task: transposed_input
# INTEGRITY.md, honest design 8
"""Makes its inputs contiguous before a flat kernel."""

import torch
import triton
import triton.language as tl


@triton.jit
def double_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, x * 2.0 + y.to(out_ptr.dtype.element_ty), mask=mask)


def pattern(x, y):
    return x * 2.0 + y


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    x = x if x.is_contiguous() else x.contiguous()
    y = y.contiguous()
    out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    n = x.numel()
    double_add[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
