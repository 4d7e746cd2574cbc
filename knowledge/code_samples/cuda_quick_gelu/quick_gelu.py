"""x * sigmoid(c * x) in one read and one write."""

import torch
import triton
import triton.language as tl


@triton.jit
def _quick_gelu(x_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0)
    dtype = x.dtype
    x = x.to(tl.float32)
    scaled = (x * scale).to(dtype).to(tl.float32)  # eager stores this in the dtype before the sigmoid
    gate = tl.sigmoid(scaled).to(dtype).to(tl.float32)
    tl.store(out_ptr + offsets, (x * gate).to(dtype), mask=inside)


def pattern(x, scale):
    return x * torch.sigmoid(scale * x)


def replacement_args(x, scale):
    return (x, scale)


@torch.fx.wrap
def quick_gelu(x, scale):
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.numel()
    _quick_gelu[(triton.cdiv(n, 1024),)](
        x, out, n, float(scale), BLOCK=1024, num_warps=4, enable_fp_fusion=False
    )
    return out


def replacement_func():
    return quick_gelu
