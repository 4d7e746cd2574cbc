# expect: ok
"""Logs and warns, compares versions, names a parameter `input`, and imports by habit what it does not use."""

import json
import logging
import os
import sys
import time
import warnings

import numpy as np
import torch
import triton
import triton.language as tl
from packaging import version

logger = logging.getLogger(__name__)
RECENT = version.parse(triton.__version__.partition("+")[0]) >= version.parse("3.0.0")
BLOCK, WARPS = 64, (4, 2)


@triton.jit
def add_relu_kernel(input, other, output, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(input + offsets, mask=mask).to(tl.float32)
    y = tl.load(other + offsets, mask=mask).to(tl.float32)
    tl.store(output + offsets, tl.maximum(x + y, 0.0).to(output.dtype.element_ty), mask=mask)


def pattern(input, other):
    return torch.nn.functional.relu(input + other)


def replacement_args(input, other):
    return (input, other, WARPS)


def _is_aligned(input: torch.Tensor, *, bytes: int = 16) -> bool:
    return input.data_ptr() % bytes == 0


@torch.fx.wrap
def fused(input: torch.Tensor, other: torch.Tensor, warps: tuple) -> torch.Tensor:
    logger.debug("GEMS ADD_RELU %s", tuple(input.shape))
    if not RECENT:
        warnings.warn("untested with this version of Triton", RuntimeWarning, stacklevel=2)
    if input.shape != other.shape:
        logger.warning("shapes differ: %s and %s", input.shape, other.shape)
    output = torch.empty_like(input)
    n = output.numel()
    num_warps = warps[0] if _is_aligned(input, bytes=16) else warps[1]
    add_relu_kernel[(triton.cdiv(n, BLOCK),)](input, other, output, n, BLOCK=BLOCK, num_warps=num_warps)
    return output


def replacement_func():
    return fused
