# expect: ok
"""Takes triton's math for libdevice where the import fails."""

import torch

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:
    HAS_TRITON = False
    triton = None
    tl = None

try:
    from triton.language.extra import libdevice
except ImportError:
    try:
        from triton.language.extra.cuda import libdevice
    except ImportError:
        libdevice = tl.math


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=m)


def fused(x, y):
    if not HAS_TRITON:
        raise ImportError("triton is required")
    out = torch.empty_like(x)
    n = out.numel()
    with torch.cuda.device(x.device):
        _kernel[(triton.cdiv(n, 512),)](x, y, out, n, BLOCK=512)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
