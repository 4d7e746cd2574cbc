# expect: ok
# task: softmax
"""Functions of kernels that depend on the version: by if and else, by hasattr, by a fallback after an import."""

from typing import Annotated, TypedDict

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda.libdevice import fast_expf as _exp
except ImportError:
    try:
        from triton.language.math import fast_expf as _exp
    except ImportError:
        _exp = tl.exp

if hasattr(tl, "maximum") and tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (2, 1):
    maximum = tl.maximum
    load = tl.load
else:
    maximum = tl.math.max
    load = tl.load


class Meta(TypedDict, total=False):
    BLOCK: int
    num_warps: int


SIZES = [16, 32]
SIZES.append(64)
SIZES.extend(s * 8 for s in (16, 32))
META: Meta = {"num_warps": 4}
META.update({"num_stages": 2})


@triton.jit
def softmax(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0) * n
    offsets = tl.arange(0, BLOCK)
    x = load(x_ptr + row + offsets, mask=offsets < n, other=float("-inf")).to(tl.float32) * 0.5
    x = x.to(out_ptr.dtype.element_ty).to(tl.float32)
    top = maximum(tl.max(x, axis=0), tl.max(x, axis=0))
    e = _exp(x - top)
    tl.store(out_ptr + row + offsets, e / tl.sum(e, axis=0), mask=offsets < n)


def pattern(x):
    return torch.nn.functional.softmax(x * 0.5, dim=-1)


def replacement_args(x):
    return (x,)


def _block(n: Annotated[int, "columns"]) -> int:
    return next(size for size in SIZES if size >= n)


@torch.fx.wrap
def fused(x):
    n = x.shape[-1]
    out = torch.empty_like(x)
    softmax[(x.numel() // n,)](x, out, n, BLOCK=_block(n), **META)
    return out


def replacement_func():
    return fused
