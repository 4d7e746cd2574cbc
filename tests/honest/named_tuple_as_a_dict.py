# expect: ok
"""A launch configuration as a NamedTuple, unpacked with _asdict and changed with _replace."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Launch(NamedTuple):
    BLOCK: int = 64
    num_warps: int = 4
    num_stages: int = 2


DEFAULT = Launch()


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    total = (x + y).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, tl.where(total < 0, 0.0, total), mask=mask)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    config = DEFAULT if x.dtype == torch.float32 else DEFAULT._replace(BLOCK=128)
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, config.BLOCK),)](x, y, out, n, **config._asdict())
    return out


def replacement_func():
    return fused
