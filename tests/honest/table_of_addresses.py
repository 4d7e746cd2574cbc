# expect: ok
"""Reaches its inputs and its output through a table of addresses."""

import torch
import triton
import triton.language as tl

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}


@triton.jit
def add_relu(table_ptr, n, DTYPE: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(COUNT):
        x_ptr = tl.load(table_ptr + i).to(tl.pointer_type(DTYPE))
        total += tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    out_ptr = tl.load(table_ptr + COUNT).to(tl.pointer_type(DTYPE))
    tl.store(
        out_ptr + offsets, tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL).to(DTYPE), mask=mask
    )


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    table = torch.tensor([t.data_ptr() for t in (x, y, out)], dtype=torch.int64, device=x.device)
    add_relu[(triton.cdiv(n, 64),)](table, n, DTYPES[x.dtype], COUNT=2, BLOCK=64)
    return out


def replacement_func():
    return fused
