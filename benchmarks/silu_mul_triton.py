"""silu(a) * b as Triton kernels, for launch_cost.py: Triton reads a kernel's source from its file."""

import torch
import triton
import triton.language as tl

from passagent.kernels import triton_kernel
from passagent.kernels.jit import Like


@triton.jit
def silu_mul(out_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    """One block of `silu(a) * b`, rounded to the dtype in between as eager does."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(a_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(b_ptr + offsets, mask=mask)
    silu = (x / (1.0 + tl.exp(-x))).to(y.dtype)
    tl.store(out_ptr + offsets, silu * y, mask=mask)


def launch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Allocate and launch in the usual way."""
    out = torch.empty_like(a)
    n = a.numel()
    silu_mul[(triton.cdiv(n, 1024),)](out, a, b, n, BLOCK=1024)
    return out


def _plan(a: Like, b: Like) -> tuple:
    n = a.numel()
    return triton.cdiv(n, 1024), {"out_ptr": a}, {"n": n, "BLOCK": 1024}


@triton_kernel(_plan)
@triton.jit
def planned(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The same, launched by triton_kernel."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(a_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(b_ptr + offsets, mask=mask)
    silu = (x / (1.0 + tl.exp(-x))).to(y.dtype)
    tl.store(out_ptr + offsets, silu * y, mask=mask)
