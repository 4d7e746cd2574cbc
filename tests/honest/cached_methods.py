# expect: ok
"""Caches methods and a property of an object."""

from functools import cached_property, lru_cache

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


class DeviceInfo:
    @cached_property
    def sm_count(self) -> int:
        return torch.cuda.get_device_properties(0).multi_processor_count

    @lru_cache(maxsize=None)
    def blocks_for(self, n: int) -> int:
        return triton.cdiv(n, 64)


INFO = DeviceInfo()


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    _kernel[(INFO.blocks_for(n) + 0 * INFO.sm_count,)](x, y, out, n, BLOCK=64)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
