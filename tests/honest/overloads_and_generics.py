# expect: ok
"""Declares overloads and generic classes for a type checker."""

from __future__ import annotations

import typing as t
from typing import Generic, ParamSpec, TypeVar

import torch
import triton
import triton.language as tl

T = TypeVar("T")
if t.TYPE_CHECKING:
    from torch import Tensor


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


@t.overload
def launch(x: Tensor, y: Tensor, out: None = None) -> Tensor: ...
@t.overload
def launch(x: Tensor, y: Tensor, out: Tensor) -> Tensor: ...
def launch(x, y, out=None):
    if out is None:
        out = torch.empty_like(x)
    n = out.numel()
    _kernel[(triton.cdiv(n, 512),)](x, y, out, n, BLOCK=BOX.value)
    return out


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


BOX: Box[int] = Box(512)


def fused(x, y):
    return launch(x, y)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
