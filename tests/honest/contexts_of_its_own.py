# expect: ok
"""Enters contexts of its own: a function under contextmanager, an object, and a stack of them."""

import contextlib
from collections.abc import Iterator

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


@contextlib.contextmanager
def described(what: str, *tensors: torch.Tensor) -> Iterator[int]:
    """Says which launch it was that failed."""
    try:
        with torch.no_grad():
            yield max(tensor.numel() for tensor in tensors)
    except (ValueError, TypeError) as error:
        raise RuntimeError(f"{what} of {[tuple(tensor.shape) for tensor in tensors]}: {error}") from error


class SameShape:
    def __init__(self, *tensors):
        self.shapes = {tensor.shape for tensor in tensors}

    def __enter__(self):
        if len(self.shapes) > 1:
            raise ValueError(f"shapes differ: {self.shapes}")
        return self

    def __exit__(self, kind, error, traceback):
        return False


def fused(x, y):
    out = torch.empty_like(x)
    with contextlib.ExitStack() as stack, SameShape(x, y) as same:
        if x.is_cuda and torch.cuda.device_count() > 1:
            stack.enter_context(torch.cuda.device(x.device))
        n = stack.enter_context(described("add_relu", x, y))
        assert len(same.shapes) == 1
        with described("launch", out):
            _kernel[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
