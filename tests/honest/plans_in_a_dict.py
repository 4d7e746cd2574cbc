# expect: ok
# INTEGRITY.md, honest design 14
"""Launch plans in a module-level dict, keyed by shape and dtype."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(
        out_ptr + offsets,
        tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out_ptr.dtype.element_ty),
        mask=mask,
    )


_PLANS: dict[tuple, tuple] = {}


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    key = (x.shape, x.dtype)
    found = _PLANS.get(key)
    if found is None:
        n = x.numel()
        found = _PLANS[key] = (n, (triton.cdiv(n, 64),))
    n, grid = found
    out = torch.empty_like(x)
    add_relu[grid](x, y, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused
