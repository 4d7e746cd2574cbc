# expect: ok
"""Compares with eager under a switch that is off, and imports for a type checker only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

DEBUG = os.environ.get("ADD_RELU_DEBUG", "0").lower() in ("1", "true")
VERBOSE: bool = bool(int(os.getenv("ADD_RELU_VERBOSE", "0")))

FLOOR: tl.constexpr = tl.constexpr(0.0)
SHIFTED: tl.constexpr = tl.constexpr(False)


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    if SHIFTED:
        a += 1.0
    tl.store(out_ptr + offs, tl.maximum(a + b, FLOOR), mask=m)


def reference(x, y):
    return torch.relu(x + y)


def launch(kernel: JITFunction, x, y, out) -> None:
    n = out.numel()
    kernel[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)


def fused(x, y):
    out = torch.empty_like(x)
    launch(_kernel, x, y, out)
    if DEBUG and x.numel() < 1 << 20:
        torch.testing.assert_close(out, reference(x, y))
    if VERBOSE:
        print(out.sum())
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
