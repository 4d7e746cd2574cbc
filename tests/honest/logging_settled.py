# expect: ok
"""Settles what is logged, and asks whether it is."""

import logging
import sys
from enum import Flag, IntEnum

import torch
import triton
import triton.language as tl

logging.basicConfig(level=logging.INFO)
log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())


class DType(IntEnum):
    FP32 = 0
    FP16 = 1
    BF16 = 2

    @classmethod
    def from_torch(cls, dtype: torch.dtype) -> "DType":
        return {torch.float32: cls.FP32, torch.float16: cls.FP16, torch.bfloat16: cls.BF16}[dtype]


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, DT: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    if log.isEnabledFor(logging.DEBUG):
        log.debug("n=%d", n)
    _kernel[(triton.cdiv(n, 64),)](x, y, out, n, DT=int(DType.from_torch(x.dtype)), BLOCK=64)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
