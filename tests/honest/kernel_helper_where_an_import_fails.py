# expect: ok
# task: two_outputs
"""Defines helpers of the kernel by what Triton offers."""

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.libdevice import no_such_function as halved
except ImportError:

    @triton.jit
    def halved(x):
        """Half of it."""
        return x * 0.5


if hasattr(tl, "sigmoid"):

    @triton.jit
    def gate_of(x):
        return tl.sigmoid(2.0 * halved(x))

else:

    @triton.jit
    def gate_of(x):
        return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def add_sigmoid(x_ptr, y_ptr, total_ptr, gate_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(total_ptr + offsets, total, mask=mask)
    tl.store(gate_ptr + offsets, gate_of(total), mask=mask)


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    total, gate = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    add_sigmoid[(triton.cdiv(n, 64),)](x, y, total, gate, n, BLOCK=64)
    return total, gate


def replacement_func():
    return fused
