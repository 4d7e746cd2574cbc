# expect: ok
"""Functions of libdevice with one to three operands, numbers and constants among them, and of other types."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

SCALE = tl.constexpr(2.0)


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    total = libdevice.fma(x, 1.0, y)
    total = libdevice.div_rn(libdevice.mul_rn(total, SCALE), 2.0)
    positive = libdevice.fdim(total, 0.0)
    # what is whole is its own nearest, whatever way it is rounded
    whole = libdevice.floor(positive)
    nearest = libdevice.rint(whole) + libdevice.nearbyint(whole) - libdevice.round(whole)
    nearest = nearest + (libdevice.llrint(whole) - libdevice.llround(whole)).to(tl.float32)
    one = libdevice.fast_expf(libdevice.fast_logf(libdevice.exp10(total * 0.0)))
    is_number = libdevice.finitef(nearest) & (libdevice.isnan(nearest) == 0) & (libdevice.isinf(one) == 0)
    result = tl.where(is_number, (positive - whole) + nearest * libdevice.saturatef(one * 3.0), positive)
    result = tl.where((libdevice.signbit(total) != 0) & (total == total), 0.0, result)
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=mask)


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
