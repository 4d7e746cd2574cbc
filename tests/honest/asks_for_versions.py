# expect: ok
"""Asks which Python and which Triton it runs on."""

import sys

import torch
import triton
import triton.language as tl

assert sys.version_info >= (3, 8)
if not hasattr(triton, "cdiv"):
    raise ImportError("triton is too old")
_TRITON_MAJOR = int(triton.__version__.split(".")[0])
IS_TRITON_3 = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 0)


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


def fused(x, y):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(x).__name__}")
    out = torch.empty_like(x)
    n = out.numel()
    _kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
