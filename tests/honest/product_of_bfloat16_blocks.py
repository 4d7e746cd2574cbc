# expect: ok
# task: product_half
"""tl.dot of bfloat16 blocks into a float32 accumulator, and the greatest element of each row with its index."""

import torch
import triton
import triton.language as tl


@triton.jit
def product(
    x_ptr, y_ptr, out_ptr, top_ptr, at_ptr, k, ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, k, STEP):
        inner = start + tl.arange(0, STEP)
        x = tl.load(x_ptr + rows[:, None] * k + inner[None, :])
        y = tl.load(y_ptr + inner[:, None] * COLS + cols[None, :])
        total = tl.dot(x, y, total)
    rounded = total.to(out_ptr.dtype.element_ty)
    is_nan = rounded != rounded
    top, at = tl.max(tl.where(is_nan, float("-inf"), rounded), axis=1, return_indices=True)
    has_nan, first_nan = tl.max(is_nan.to(tl.int32), axis=1, return_indices=True)
    top = tl.where(has_nan > 0, float("nan"), top)
    at = tl.where(has_nan > 0, first_nan, at)
    tl.store(out_ptr + rows[:, None] * COLS + cols[None, :], rounded)
    tl.store(top_ptr + rows, top)
    tl.store(at_ptr + rows, at.to(tl.int64))


def pattern(x, y):
    total = x @ y
    best = total.max(-1)
    top = best[0]
    at = best[1]
    return total, top, at


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    rows, k = x.shape
    out = x.new_empty((rows, y.shape[1]))
    top, at = x.new_empty(rows), x.new_empty(rows, dtype=torch.int64)
    product[(rows // 16,)](x, y, out, top, at, k, ROWS=16, COLS=y.shape[1], STEP=16)
    return out, top, at


def replacement_func():
    return fused
