# expect: ok
# task: softmax
"""Keeps its kernel in the class that launches it, without a word of static methods."""

import torch
import triton
import triton.language as tl


class Softmax:
    """All of the operator in one place."""

    MAX_BLOCK = 4096

    @triton.jit
    def _row_kernel(x_ptr, o_ptr, cols, scale, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        offs = tl.arange(0, BLOCK)
        m = offs < cols
        v = tl.load(x_ptr + row * cols + offs, mask=m, other=-float("inf")).to(tl.float32) * scale
        v = tl.exp(v - tl.max(v, axis=0))
        tl.store(o_ptr + row * cols + offs, (v / tl.sum(v, axis=0)).to(o_ptr.dtype.element_ty), mask=m)

    @classmethod
    def apply(cls, x: torch.Tensor, scale: float) -> torch.Tensor:
        cols = x.shape[-1]
        block = triton.next_power_of_2(cols)
        if block > cls.MAX_BLOCK:
            raise ValueError(f"{cols} columns are too many")
        out = torch.empty_like(x)
        cls._row_kernel[(x.numel() // cols,)](x, out, cols, scale, BLOCK=block)
        return out


def fused(x):
    return Softmax.apply(x, 0.5)


def pattern(x):
    tmp = x * 0.5
    return torch.nn.functional.softmax(tmp, dim=-1)


def replacement_args(x):
    return (x,)


def replacement_func():
    return fused
