# expect: ok
# task: transposed_input
"""The launcher copies what is not contiguous; a number of the graph is an argument of the kernel."""

import torch
import triton
import triton.language as tl
from passagent.kernels import triton_kernel


def _plan(x, y, factor):
    rows, lanes = y.shape
    block = triton.next_power_of_2(lanes)
    return rows, {"out": y}, {"lanes": lanes, "BLOCK": block}


@triton_kernel(_plan)
@triton.jit
def scale_add(x_ptr, y_ptr, factor, out, lanes, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(0) * lanes + lane
    x = tl.load(x_ptr + at, mask=lane < lanes)
    y = tl.load(y_ptr + at, mask=lane < lanes)
    tl.store(out + at, x * factor + y, mask=lane < lanes)


def pattern(x, y, factor):
    scaled = x * factor
    return scaled + y


def replacement_args(x, y, factor):
    return (x, y, factor)


@torch.fx.wrap
def fused(x, y, factor):
    return scale_add(x, y, factor)


def replacement_func():
    return fused
