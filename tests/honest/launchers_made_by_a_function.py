# expect: ok
"""Makes its launchers when it is imported, each for a block size."""

from typing import Callable

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


def make_launcher(block_size: int, num_warps: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def launcher(x, y):
        out = torch.empty_like(x)
        n = out.numel()
        _kernel[(triton.cdiv(n, block_size),)](x, y, out, n, BLOCK=block_size, num_warps=num_warps)
        return out

    return launcher


LAUNCHERS = {bs: make_launcher(bs, w) for bs, w in ((64, 2), (256, 4), (1024, 8))}


def fused(x, y):
    n = x.numel()
    return LAUNCHERS[64 if n < 1000 else 1024](x, y)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
