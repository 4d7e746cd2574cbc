# expect: ok
# task: sum_all
# INTEGRITY.md, honest design 1
"""The autotuner resets an accumulator between its trials."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}) for b in (64, 128)], key=["n"], reset_to_zero=["out_ptr"]
)
@triton.jit
def total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
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
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    n = x.numel()
    total_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, total, n)
    return total


def replacement_func():
    return fused
