# expect: ok
"""Kernels annotated with tl.tensor, tl.pointer_type and tl.const, strings for constexpr."""

import torch
import triton
import triton.language as tl


@triton.jit
def _relu(v: tl.tensor) -> tl.tensor:
    return tl.where(v < 0, 0.0, v)


@triton.jit
def add_relu(x_ptr: tl.tensor, y_ptr: "tl.tensor", out_ptr, n: tl.int32, BLOCK: tl.constexpr):
    offsets: tl.tensor = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, _relu(x + y).to(out_ptr.dtype.element_ty), mask=mask)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
