# expect: ok
# task: mask
# INTEGRITY.md, honest design 23
"""An int64 mask becomes float32."""

import torch
import triton
import triton.language as tl


@triton.jit
def bias(mask_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(mask_ptr + offsets, mask=offsets < n).to(tl.float32)
    tl.store(out_ptr + offsets, (1.0 - kept) * -10000.0, mask=offsets < n)


def pattern(x):
    kept = x.to(torch.float32)
    return (1.0 - kept) * -10000.0


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    n = x.numel()
    bias[(triton.cdiv(n, 64),)](x, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
