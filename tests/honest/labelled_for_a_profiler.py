# expect: ok
"""Gives its work names that a profiler shows, and keeps a warning of Triton's from being seen."""

import warnings

import torch
import torch.cuda.nvtx as nvtx
import triton
import triton.language as tl
from torch.profiler import record_function


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=m)


@nvtx.range("add_relu")
def launch(x, y, out):
    n = out.numel()
    nvtx.range_push(f"launch of {n}")
    with warnings.catch_warnings(), torch.no_grad(), record_function("add_relu"):
        warnings.simplefilter("ignore")
        _kernel[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
    torch.cuda.nvtx.range_pop()


def fused(x, y):
    out = torch.empty_like(x)
    with torch.cuda.nvtx.range("fused"):
        launch(x, y, out)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
