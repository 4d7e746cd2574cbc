"""Residual add and layer norm in one kernel, a program for each row; both results are outputs."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_layer_norm_kernel(x_ptr, y_ptr, w_ptr, b_ptr, added_ptr, out_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row + cols, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row + cols, mask=mask, other=0.0).to(tl.float32)
    stored = (x + y).to(added_ptr.dtype.element_ty)  # eager stores the sum in T before it normalises
    tl.store(added_ptr + row + cols, stored, mask=mask)
    value = stored.to(tl.float32)
    mean = tl.sum(value, axis=0) / n
    centred = tl.where(mask, value - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / n + eps)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    result = centred * scale * w + b
    tl.store(out_ptr + row + cols, result.to(out_ptr.dtype.element_ty), mask=mask)


def pattern(x, y, weight, bias, n, eps):
    added = x + y
    return added, torch.nn.functional.layer_norm(added, (n,), weight, bias, eps)


def replacement_args(x, y, weight, bias, n, eps):
    return (x, y, weight, bias, n, eps)


@torch.fx.wrap
def fused_add_layer_norm(x, y, weight, bias, n, eps):
    x, y = x.contiguous(), y.contiguous()  # both of the same shape in every graph of this task
    added, out = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(n)
    warps = 4 if block <= 2048 else 8
    add_layer_norm_kernel[(x.numel() // n,)](
        x, y, weight, bias, added, out, n, eps, BLOCK=block, num_warps=warps, enable_fp_fusion=False
    )
    return added, out


def replacement_func():
    return fused_add_layer_norm
