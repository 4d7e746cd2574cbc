# expect: ok
"""Maps a method of tensors over its inputs."""

from itertools import chain
from math import ceil, prod

import torch
import triton
import triton.language as tl

BLOCKS = (64, 256, 1024)
CONFIGS = tuple(
    triton.Config({"BLOCK": b}, num_warps=w, num_stages=1) for b in BLOCKS for w in (2, 4) if b >= 32 * w
)
KEYS = [*chain(("n",))]


@triton.autotune(configs=[*CONFIGS], key=KEYS)
@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, m, 0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, m, 0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), m)


def fused(x, y):
    x, y = map(torch.Tensor.contiguous, (x, y))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if (n := prod(x.shape)) > 0:
        _kernel[lambda meta: (ceil(n / meta["BLOCK"]),)](x, y, out, n)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
