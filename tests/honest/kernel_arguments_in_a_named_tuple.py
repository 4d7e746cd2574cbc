# expect: ok
"""Hands sizes and pointers to the kernel in a named tuple, and computes a constant while it is compiled."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

BLOCK = tl.constexpr(64)


class Inputs(NamedTuple):
    X_PTR: torch.Tensor
    Y_PTR: torch.Tensor
    num_elements: int


@triton.constexpr_function
def halved(size):
    return max(size // 2, 1)


@triton.jit
def add_relu(inputs, out_ptr):
    size: tl.constexpr = halved(BLOCK)
    offsets = tl.program_id(0) * size + tl.arange(0, size)
    mask = offsets < inputs.num_elements
    x = tl.load(inputs.X_PTR + offsets, mask=mask).to(tl.float32)
    y = tl.load(inputs.Y_PTR + offsets, mask=mask).to(tl.float32)
    tl.store(
        out_ptr + offsets,
        tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out_ptr.dtype.element_ty),
        mask=mask,
    )


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, halved(BLOCK.value)),)](Inputs(x, y, n), out)
    return out


def replacement_func():
    return fused
