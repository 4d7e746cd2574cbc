"""The sum of a scaled branch and a residual, and its layer norm: a program per row, two outputs."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add_layer_norm(
    x_ptr, scale_ptr, residual_ptr, weight_ptr, bias_ptr, sum_ptr, out_ptr, n, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * n
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0)
    dtype = x.dtype
    scale = tl.load(scale_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    scaled = (x.to(tl.float32) * scale).to(dtype).to(tl.float32)
    summed = (scaled + residual).to(dtype)
    tl.store(sum_ptr + row + columns, summed, mask=inside)
    value = summed.to(tl.float32)
    mean = tl.sum(value, 0) / n
    centred = tl.where(inside, value - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + columns, (centred * rstd * weight + bias).to(dtype), mask=inside)


def pattern(x, scale, residual, n, weight, bias, eps, p):
    branch = torch.nn.functional.dropout(x, p, False, False)
    summed = branch * scale + residual
    return summed, torch.nn.functional.layer_norm(summed, (n,), weight, bias, eps)


def replacement_args(x, scale, residual, n, weight, bias, eps, p):
    return (x, scale, residual, weight, bias, eps)


@torch.fx.wrap
def add_layer_norm(x, scale, residual, weight, bias, eps):
    n = x.shape[-1]
    x, residual = x.contiguous(), residual.contiguous()
    summed, out = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(n)
    launch = _add_layer_norm[(x.numel() // n,)]
    warps = 4 if block <= 1024 else 8
    # Without fp fusion: with it the compiler drops the rounding between two 16-bit operators.
    options = {"num_warps": warps, "enable_fp_fusion": False}
    launch(x, scale, residual, weight, bias, summed, out, n, float(eps), BLOCK=block, **options)
    return summed, out


def replacement_func():
    return add_layer_norm
