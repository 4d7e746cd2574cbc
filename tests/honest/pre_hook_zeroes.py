# expect: ok
# task: sum_all
"""A hook of a configuration zeroes the accumulator before the launch."""

import torch
import triton
import triton.language as tl


def _zero(nargs):
    nargs["out_ptr"].zero_()


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, pre_hook=_zero)], key=["n"])
@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x * 2.0, axis=0))


def pattern(x):
    doubled = x * 2.0
    return doubled.sum()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = torch.empty((), dtype=x.dtype, device=x.device)
    n = x.numel()
    total[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out


def replacement_func():
    return fused
