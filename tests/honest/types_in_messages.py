# expect: ok
"""type(x) in an assert's message, a concatenation and a % format."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = (x + y).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, tl.where(total < 0, 0.0, total), mask=mask)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    assert isinstance(x, torch.Tensor), type(x)
    if not isinstance(y, torch.Tensor):
        raise TypeError("expected a tensor, got " + str(type(y)))
    if x.ndim == 0:
        raise ValueError("rank 0: %s" % type(x).__name__)
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
