# expect: ok
"""Keeps a table of numbers on each device, in a dict."""

import torch
import triton
import triton.language as tl

_FLOORS = (0.0, -0.0) * 8
_TABLES: dict[torch.device, torch.Tensor] = {}


@triton.jit
def _kernel(x_ptr, y_ptr, floors_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(
        out_ptr + offs,
        tl.maximum(a + b, tl.load(floors_ptr + offs % 16), propagate_nan=tl.PropagateNan.ALL),
        mask=m,
    )


def table(device):
    if device not in _TABLES:
        _TABLES[device] = torch.tensor(_FLOORS, device=device)
    return _TABLES[device]


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    _kernel[(triton.cdiv(n, 64),)](x, y, table(x.device), out, n, BLOCK=64)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
