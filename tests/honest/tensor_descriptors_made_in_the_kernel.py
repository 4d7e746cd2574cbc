# expect: ok
# task: two_outputs
"""Tensor descriptors made in the kernel, for which Triton is told how to allocate."""

from typing import Optional

import torch
import triton
import triton.language as tl


def allocate(size: int, alignment: int, stream: Optional[int]):
    return torch.empty(size, device="cuda", dtype=torch.int8)


triton.set_allocator(allocate)


@triton.jit
def add_sigmoid(x_ptr, y_ptr, total_ptr, gate_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [ROWS, COLS])
    y = tl.make_tensor_descriptor(y_ptr, [rows, cols], [cols, 1], [ROWS, COLS])
    row, col = tl.program_id(0) * ROWS, tl.program_id(1) * COLS
    total = x.load([row, col]) + y.load([row, col])
    tl.make_tensor_descriptor(total_ptr, [rows, cols], [cols, 1], [ROWS, COLS]).store([row, col], total)
    gate = tl.make_tensor_descriptor(gate_ptr, [rows, cols], [cols, 1], [ROWS, COLS])
    gate.store([row, col], tl.sigmoid(total))


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    triton.set_allocator(allocate)
    total, gate = torch.empty_like(x), torch.empty_like(x)
    rows, cols = x.shape
    grid = (triton.cdiv(rows, 4), triton.cdiv(cols, 16))
    add_sigmoid[grid](x, y, total, gate, rows, cols, ROWS=4, COLS=16)
    return total, gate


def replacement_func():
    return fused
