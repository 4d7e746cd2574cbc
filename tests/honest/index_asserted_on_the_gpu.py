# expect: ok
# task: embedding
# gpu
"""Asserts in Triton that each index is one of the table."""

import torch
import triton
import triton.language as tl


@triton.jit
def rows(out_ptr, at_ptr, table_ptr, count, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    inside = lane < n
    at = tl.load(at_ptr + row)
    tl.device_assert((at >= 0) & (at < count), "index out of range")
    value = tl.load(table_ptr + at * n + lane, mask=inside, other=0)
    tl.store(out_ptr + row * n + lane, value * 2.0, mask=inside)


def pattern(indices, table):
    return torch.nn.functional.embedding(indices, table) * 2.0


def replacement_args(indices, table):
    return (indices, table)


@torch.fx.wrap
def fused(indices, table):
    count, n = table.shape
    out = table.new_empty((*indices.shape, n))
    rows[(indices.numel(),)](out, indices, table, count, n, BLOCK=triton.next_power_of_2(n))
    return out


def replacement_func():
    return fused
