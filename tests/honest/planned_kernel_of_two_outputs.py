# expect: ok
# task: two_outputs
"""Two outputs of one planned kernel, one described by shape and dtype."""

import torch
import triton
import triton.language as tl
from passagent.kernels import triton_kernel


def _plan(x, y):
    n = x.numel()
    return triton.cdiv(n, 64), {"total": x, "out": (x.shape, x.dtype)}, {"n": n, "BLOCK": 64, "num_warps": 2}


@triton_kernel(_plan, enable_fp_fusion=False)
@triton.jit
def add_sigmoid(x_ptr, y_ptr, total, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    v = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(total + offsets, v, mask=mask)
    tl.store(out + offsets, 1.0 / (1.0 + tl.exp(-v)), mask=mask)


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return add_sigmoid(x, y)


def replacement_func():
    return fused
