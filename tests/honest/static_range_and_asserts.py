# expect: ok
"""Unrolled loops, static asserts and compile-time branches."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, UNROLL: tl.constexpr, RELU: tl.constexpr = True):
    tl.static_assert(BLOCK >= 16, "blocks of at least sixteen")
    for step in tl.static_range(UNROLL):
        offsets = (tl.program_id(0) * UNROLL + step) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        total = tl.load(x_ptr + offsets, mask=mask).to(tl.float32) + tl.load(y_ptr + offsets, mask=mask).to(
            tl.float32
        )
        if RELU:
            total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out_ptr + offsets, total.to(out_ptr.dtype.element_ty), mask=mask)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=16, UNROLL=4, RELU=True)
    return out


def replacement_func():
    return fused
