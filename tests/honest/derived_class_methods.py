# expect: ok
"""Class methods of a base use what the class that is derived from it says, and make the only object of it."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, FLOOR: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(out_ptr + offsets, tl.maximum(x + y, FLOOR).to(out_ptr.dtype.element_ty), mask=mask)


class Pointwise:
    BLOCK = 32
    FLOOR = -1.0
    _only = None

    @classmethod
    def options(cls):
        return {"BLOCK": cls.BLOCK, "FLOOR": cls.FLOOR}

    @classmethod
    def instance(cls):
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def __call__(self, x, y):
        out = torch.empty_like(x)
        n = out.numel()
        add_relu[(triton.cdiv(n, self.BLOCK),)](x, y, out, n, **self.options())
        return out


class AddRelu(Pointwise):
    BLOCK = 64
    FLOOR = 0.0


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def fused(x, y):
    return AddRelu.instance()(x, y)


def replacement_func():
    return fused
