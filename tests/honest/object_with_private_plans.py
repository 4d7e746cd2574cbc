# expect: ok
# task: softmax
"""Keeps a plan for each shape in an object, under private names."""

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(x_ptr, o_ptr, rows, cols, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    m = offs < cols
    v = tl.load(x_ptr + row * cols + offs, mask=m, other=-float("inf")).to(tl.float32) * scale
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(o_ptr + row * cols + offs, (v / tl.sum(v, axis=0)).to(o_ptr.dtype.element_ty), mask=m)


class SoftmaxOp:
    """Keeps a launch plan for each shape."""

    def __init__(self, scale: float):
        self.scale = scale
        self._plans = {}

    def _plan(self, rows, cols):
        key = (rows, cols)
        plan = self._plans.get(key)
        if plan is None:
            block = triton.next_power_of_2(cols)
            plan = (block, 4 if block <= 2048 else 8)
            self._plans[key] = plan
        return plan

    def __call__(self, x):
        cols = x.size(-1)
        rows = x.numel() // cols
        block, num_warps = self._plan(rows, cols)
        out = torch.empty_like(x)
        _softmax[(rows,)](x, out, rows, cols, self.scale, BLOCK=block, num_warps=num_warps)
        return out

    def __repr__(self):
        return f"{self.__class__.__name__}(scale={self.scale})"


_op = SoftmaxOp(0.5)


def fused(x):
    return _op(x)


def pattern(x):
    tmp = x * 0.5
    return torch.nn.functional.softmax(tmp, dim=-1)


def replacement_args(x):
    return (x,)


def replacement_func():
    return fused
