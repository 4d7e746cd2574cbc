# expect: ok
# task: layer_norm
"""Annotates everything, by names of every module for types."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, MutableMapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

import torch
import triton
import triton.language as tl
from torch import Size, Tensor, nn
from torch.types import Device

Shape: TypeAlias = "tuple[int, ...]"
Mode = Literal["fwd", "bwd"]
LIMITS = MappingProxyType({"max_cols": 65536})


@triton.jit
def _ln(x_ptr, w_ptr, b_ptr, o_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x) / n
    xc = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(xc * xc) / n + eps)
    w = tl.load(w_ptr + cols, mask=mask)
    b = tl.load(b_ptr + cols, mask=mask)
    tl.store(o_ptr + row * n + cols, xc * rstd * w + b, mask=mask)


def fused(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5, mode: Mode = "fwd"
) -> Tensor:
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    if n > LIMITS["max_cols"]:
        raise ValueError(n)
    out = torch.empty_like(x)
    _ln[(rows,)](x, weight, bias, out, n, eps, BLOCK=triton.next_power_of_2(n))
    return out


def pattern(x, w, b):
    return torch.nn.functional.layer_norm(x, (24,), w, b, 1e-05)


def replacement_args(x, w, b):
    return (x, w, b)


def replacement_func():
    return fused
