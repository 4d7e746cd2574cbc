# expect: ok
"""Keeps its plans as dataclasses with properties and methods, and launches through an object made once."""

import functools
from collections import OrderedDict
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

RECENT = OrderedDict()


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, tl.maximum(x + y, 0.0).to(out_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class Plan:
    """How many elements are taken at once."""

    total: int
    block: int = 64

    def __post_init__(self):
        if self.block & (self.block - 1):
            raise ValueError(f"{self.block} is no power of 2")

    @property
    def num_warps(self) -> int:
        return 4 if self.total > self.block else 1

    def grid(self) -> tuple:
        return (triton.cdiv(self.total, self.block),)

    @classmethod
    def for_total(cls, total: int) -> "Plan":
        return cls(total, min(64, triton.next_power_of_2(total)))


@functools.lru_cache(maxsize=None)
def plan_of(total):
    return Plan.for_total(total)


class AddRelu:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def plan(self, x: torch.Tensor) -> Plan:
        key = (x.shape, x.dtype)
        if key in RECENT:
            RECENT.move_to_end(key)
        else:
            RECENT[key] = plan_of(x.numel())
        if len(RECENT) > self.limit:
            RECENT.popitem(last=False)
        return RECENT[key]

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out, plan = torch.empty_like(x), self.plan(x)
        add_relu[plan.grid()](x, y, out, plan.total, BLOCK=plan.block, num_warps=plan.num_warps)
        return out


OPERATOR = AddRelu(limit=64)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return OPERATOR(x.contiguous(), y.contiguous())


def replacement_func():
    return fused
