# expect: ok
"""Keeps tables and plans in an OrderedDict and a defaultdict, modes in enumerations of strings and numbers."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from enum import Enum

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n, int64_t block) {
  for (int64_t start = 0; start < n; start += block)
    for (int64_t i = start; i < std::min(n, start + block); ++i)
      out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


class Mode(str, Enum):
    WHOLE = "whole"
    BLOCKS = "blocks"


class Level(int, Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Config:
    block_size: int = field(default=64)
    row_mode: Mode = field(default=Mode.BLOCKS, repr=False)
    extra_sizes: list = field(default_factory=list, compare=False)


CONFIGS = OrderedDict([(torch.float32, Config()), (torch.bfloat16, Config(128, row_mode=Mode.WHOLE))])
FACTORS = dict.fromkeys(Level, 2)
BLOCKS = defaultdict(lambda: 64, {torch.float32: 128})
PLANS = defaultdict(dict)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    config = CONFIGS.get(x.dtype, Config())
    n = x.numel()
    block = config.block_size * FACTORS[Level.HIGH] + BLOCKS[x.dtype]
    if config.row_mode == "whole" or config.row_mode is Mode.WHOLE:
        block = n
    PLANS[x.shape][x.dtype] = (n, block)
    groups = defaultdict(list)
    for size in x.shape:
        groups[size % 2 == 0].append(size)
    out = torch.empty_like(x)
    KERNEL(out, x, y, *PLANS[x.shape][x.dtype])
    return out


def replacement_func():
    return fused
