# expect: ok
# task: broadcast
# INTEGRITY.md, honest design 17
"""A row, a 0-d tensor and a matrix together, broadcast in the kernel."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_mul(x_ptr, y_ptr, z_ptr, out_ptr, n, cols, y_stride, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + (offsets % cols) * y_stride, mask=mask)
    tl.store(out_ptr + offsets, (x + y) * tl.load(z_ptr), mask=mask)


def pattern(x, y, z):
    total = x + y
    return total * z


def replacement_args(x, y, z):
    return (x, y, z)


@torch.fx.wrap
def fused(x, y, z):
    out = torch.empty(
        torch.broadcast_shapes(x.shape, y.shape, z.shape), dtype=torch.result_type(x, y), device=x.device
    )
    n = out.numel()
    add_mul[(triton.cdiv(n, 64),)](x, y, z, out, n, x.shape[-1], y.stride(0), BLOCK=64)
    return out


def replacement_func():
    return fused
