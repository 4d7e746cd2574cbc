# expect: ok
"""Asks for the number of multiprocessors when it is first needed, and keeps it in an object."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.maximum(a + b, 0.0), mask=m)


class AddReLU:
    def __init__(self):
        self._num_sms = None

    @property
    def num_sms(self):
        if self._num_sms is None:
            self._num_sms = torch.cuda.get_device_properties(0).multi_processor_count
        return self._num_sms

    def __call__(self, x, y):
        out = torch.empty_like(x)
        n = out.numel()
        _kernel[(triton.cdiv(n, 64) if self.num_sms else 1,)](x, y, out, n, BLOCK=64)
        return out


_impl = AddReLU()


def fused(x, y):
    return _impl(x, y)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
