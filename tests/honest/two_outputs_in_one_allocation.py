# expect: ok
# task: two_outputs
# INTEGRITY.md, honest design 7, 16
"""Both results are halves of one allocation."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_sigmoid(x_ptr, y_ptr, total_ptr, gate_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(total_ptr + offsets, total, mask=mask)
    tl.store(gate_ptr + offsets, tl.sigmoid(total), mask=mask)


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    both = torch.empty((2, *x.shape), dtype=x.dtype, device=x.device)
    total, gate = both.unbind(0)
    n = x.numel()
    add_sigmoid[(triton.cdiv(n, 64),)](x, y, total, gate, n, BLOCK=64)
    return total, gate


def replacement_func():
    return fused
