# expect: ok
"""Fills its plans under locks, as where several threads might ask for one."""

import threading
from threading import RLock

import torch
import triton
import triton.language as tl

_LOCK = threading.Lock()
_BLOCKS: dict[int, int] = {}


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


class Plans:
    def __init__(self):
        self._lock = RLock()
        self._grids = {}

    def grid(self, numel, block):
        with self._lock:
            if numel not in self._grids:
                self._grids[numel] = (triton.cdiv(numel, block),)
        return self._grids[numel]


PLANS = Plans()


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    with _LOCK, torch.no_grad():
        block = _BLOCKS.setdefault(n, 64)
    _kernel[PLANS.grid(n, block)](x, y, out, n, BLOCK=block)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
