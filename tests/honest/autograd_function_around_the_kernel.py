# expect: ok
# task: layer_norm
"""Launches in the forward of a torch.autograd.Function, which notes what a backward would need."""

import torch
import triton
import triton.language as tl
from torch.autograd import Function
from torch.cuda.amp import custom_bwd, custom_fwd


@triton.jit
def norm(x_ptr, w_ptr, b_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / n, 0.0)
    scaled = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    w, b = tl.load(w_ptr + columns, mask=mask), tl.load(b_ptr + columns, mask=mask)
    tl.store(out_ptr + row * n + columns, scaled * w + b, mask=mask)


class FusedLayerNorm(Function):
    """As in the libraries for training."""

    @staticmethod
    @custom_fwd
    def forward(ctx, x, w, b, eps):
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        block = triton.next_power_of_2(rows.shape[1])
        norm[(rows.shape[0],)](rows, w, b, out, rows.shape[1], eps, BLOCK=block)
        ctx.save_for_backward(x, w)
        ctx.eps, ctx.block = eps, block
        ctx.rows = rows.shape[0]
        return out.view(x.shape)

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w * torch.rsqrt(x.var(-1, keepdim=True) + ctx.eps), None, None, None


layer_norm = FusedLayerNorm.apply


def pattern(x, w, b):
    return torch.nn.functional.layer_norm(x, (24,), w, b, 1e-05)


def replacement_args(x, w, b):
    return (x, w, b, 1e-05)


@torch.fx.wrap
def fused(x, w, b, eps):
    return layer_norm(x, w, b, eps)


def replacement_func():
    return fused
