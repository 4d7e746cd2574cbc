# expect: ok
"""Raises an exception of its own, and falls back to fewer warps."""

import warnings

import torch
import triton
import triton.language as tl


class UnsupportedShapeError(ValueError):
    """Raised when the kernel cannot handle a shape."""


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


def fused(x, y):
    if x.shape != y.shape:
        raise UnsupportedShapeError(f"{x.shape} != {y.shape}")
    out = torch.empty_like(x)
    n = out.numel()
    try:
        _kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64, num_warps=8)
    except triton.runtime.errors.OutOfResources as e:
        warnings.warn(f"falling back to fewer warps: {e}", stacklevel=2)
        _kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64, num_warps=4)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
