# expect: ok
"""Tells torch's compilers not to look into its functions."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=m)


@torch.compiler.disable
def _launch(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    _kernel[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


@torch._dynamo.disable
def _other(x, y):
    return _launch(x, y)


@torch.jit.ignore
def _third(x, y):
    return _other(x, y)


def fused(x, y):
    return _third(x, y)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
