# expect: ok
# task: softmax
"""Asks the environment for a setting, and guards its inputs by a decorator."""

import functools
import os
from functools import lru_cache
from typing import Any, Callable, Dict, Literal, Optional, Tuple

import torch
import triton
import triton.language as tl

if os.environ.get("FLA_USE_FAST_OPS", "0") == "1":
    exp = tl.math.exp
else:
    exp = tl.exp


def input_guard(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """
    A decorator to make sure all input tensors are contiguous and set the device based on input tensors.
    """

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        contiguous_args = (i if not isinstance(i, torch.Tensor) else i.contiguous() for i in args)
        contiguous_kwargs = {
            k: (v if not isinstance(v, torch.Tensor) else v.contiguous()) for k, v in kwargs.items()
        }
        tensor = None
        for arg in args:
            if isinstance(arg, torch.Tensor):
                tensor = arg
                break
        with torch.cuda.device(tensor.device.index):
            return fn(*contiguous_args, **contiguous_kwargs)

    return wrapper


@triton.autotune(
    configs=[
        triton.Config({}, num_warps=num_warps, num_stages=num_stages)
        for num_warps in [1, 2, 4, 8]
        for num_stages in [2, 3]
    ],
    key=["D"],
)
@triton.jit(do_not_specialize=["T"])
def softmax_fwd_kernel(x, p, scale, T, D: tl.constexpr, B: tl.constexpr):
    i_n = tl.program_id(0)
    o_d = tl.arange(0, B)
    m_d = o_d < D
    b_x = tl.load(x + i_n * D + o_d, mask=m_d, other=-float("inf")).to(tl.float32) * scale
    b_m = tl.max(b_x, 0)
    b_x = exp(b_x - b_m)
    b_p = b_x / tl.sum(b_x, 0)
    tl.store(p + i_n * D + o_d, b_p.to(p.dtype.element_ty), mask=m_d)


@input_guard
def softmax_fwd(x: torch.Tensor, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    shape = x.shape
    x = x.view(-1, x.shape[-1])
    N, D = x.shape
    B = triton.next_power_of_2(D)
    p = torch.empty_like(x, dtype=dtype or x.dtype)
    softmax_fwd_kernel[(N,)](x=x, p=p, scale=0.5, T=N, D=D, B=B)
    return p.view(*shape)


def fused(x):
    return softmax_fwd(x)


def pattern(x):
    tmp = x * 0.5
    return torch.nn.functional.softmax(tmp, dim=-1)


def replacement_args(x):
    return (x,)


def replacement_func():
    return fused
