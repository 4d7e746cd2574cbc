# expect: ok
"""dataclasses.replace and asdict on a launch configuration."""

import dataclasses

import torch
import triton
import triton.language as tl


@dataclasses.dataclass(frozen=True)
class Launch:
    BLOCK: int = 64
    num_warps: int = 4


SMALL = Launch()
LARGE = dataclasses.replace(SMALL, BLOCK=128)


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
    config = LARGE if x.numel() > 4096 else SMALL
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, config.BLOCK),)](x, y, out, n, **dataclasses.asdict(config))
    return out


def replacement_func():
    return fused
