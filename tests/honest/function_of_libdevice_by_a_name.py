# expect: ok
# task: gelu_half
"""A function of libdevice under a module's name, from wherever this Triton keeps it; None where there is none."""

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra import libdevice
except ImportError:
    libdevice = None

erf = libdevice.erf


@triton.jit
def gelu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    product = (tl.load(x_ptr + offsets, mask=mask) * tl.load(y_ptr + offsets, mask=mask)).to(tl.float32)
    result = 0.5 * product * (1.0 + erf(product * 0.7071067811865476))
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=mask)


def pattern(x, y):
    return torch.nn.functional.gelu(x * y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    gelu[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def replacement_func():
    return fused
