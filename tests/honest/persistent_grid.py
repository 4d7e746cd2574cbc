# expect: ok
# INTEGRITY.md, honest design 3
"""A grid of as many programs as the device has multiprocessors."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, programs, BLOCK: tl.constexpr):
    for tile in range(tl.program_id(0), tl.cdiv(n, BLOCK), programs):
        offsets = tile * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
        y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
        tl.store(
            out_ptr + offsets,
            tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out_ptr.dtype.element_ty),
            mask=mask,
        )


def processors(x):
    if not x.is_cuda:
        return 4
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    programs = min(processors(x), triton.cdiv(n, 64))
    add_relu[(programs,)](x, y, out, n, programs, BLOCK=64)
    return out


def replacement_func():
    return fused
