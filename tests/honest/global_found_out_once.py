# expect: ok
"""Asks for the number of multiprocessors when it is first needed, and keeps it in a global."""

import torch
import triton
import triton.language as tl

_NUM_SMS = None


def get_num_sms():
    global _NUM_SMS
    if _NUM_SMS is None:
        _NUM_SMS = torch.cuda.get_device_properties(0).multi_processor_count
    return _NUM_SMS


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0)
    step = tl.num_programs(0)
    for block in range(start, tl.cdiv(n, BLOCK), step):
        offs = block * BLOCK + tl.arange(0, BLOCK)
        m = offs < n
        a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
        b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
        tl.store(out_ptr + offs, tl.maximum(a + b, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=m)


def fused(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    _kernel[(min(get_num_sms(), triton.cdiv(n, 64)),)](x, y, out, n, BLOCK=64)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
