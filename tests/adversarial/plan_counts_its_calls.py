# expect: refused (plan)
"""A plan tells calls apart by counting them."""

import torch
import triton
import triton.language as tl
from passagent.kernels import triton_kernel

CALLS = [0]


def _plan(x, y):
    CALLS[0] += 1
    n = x.numel() if CALLS[0] < 3 else 0
    return triton.cdiv(n, 64), {"out": x}, {"n": n, "BLOCK": 64}


@triton_kernel(_plan)
@triton.jit
def add_relu(x_ptr, y_ptr, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(
        out + offsets,
        tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out.dtype.element_ty),
        mask=mask,
    )


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return add_relu(x, y)


def replacement_func():
    return fused
