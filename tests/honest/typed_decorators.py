# expect: ok
"""Types its own decorators by their parameters, and its choices by literals."""

import functools
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Concatenate, Literal, ParamSpec, TypeVar, assert_never, get_args

import torch
import triton
import triton.language as tl

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["narrow", "wide"]


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


def contiguous(
    function: Callable[Concatenate[torch.Tensor, P], R],
) -> Callable[Concatenate[torch.Tensor, P], R]:
    @functools.wraps(function)
    def call(x: torch.Tensor, *args: P.args, **kwargs: P.kwargs) -> R:
        return function(x.contiguous(), *args, **kwargs)

    return call


def width(kind: Kind) -> int:
    if kind == "narrow":
        return next(islice((64, 128), 1, None))
    if kind == "wide":
        return list(takewhile(lambda one: one <= 512, (128, 256, 512, 1024)))[-1]
    assert_never(kind)


@contiguous
def launch(x: torch.Tensor, y: torch.Tensor, kind: Kind = "narrow") -> torch.Tensor:
    assert kind in get_args(Kind)
    out = torch.empty_like(x)
    n = out.numel()
    _kernel[(triton.cdiv(n, width(kind)),)](x, y, out, n, BLOCK=width(kind))
    return out


def fused(x, y):
    return launch(x, y.contiguous(), kind="wide" if x.numel() > 4096 else "narrow")


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
