# expect: ok
"""Holds a reference, a test and a benchmark beside the pass, and what only they import."""

import argparse
import time

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
import triton.testing


def reference(x, y):
    return F.relu(x + y)


class Model(torch.nn.Module):
    def forward(self, x, y):
        return reference(x, y)


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
    tl.store(
        out_ptr + offsets,
        tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out_ptr.dtype.element_ty),
        mask=mask,
    )


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    add_relu[(triton.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
    return out


def replacement_func():
    return fused


@torch.no_grad()
def _test(shape=(4, 64), dtype=torch.float32):
    global checked
    model = Model().cuda()
    x, y = torch.randn(shape, dtype=dtype, device="cuda"), torch.randn(shape, dtype=dtype, device="cuda")
    assert torch.allclose(fused(x, y), model(x, y), atol=1e-3)
    checked = True


def _benchmark():
    start = time.perf_counter()
    x = torch.randn(1 << 20, device="cuda")
    print(triton.testing.do_bench(lambda: fused(x, x)), time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--benchmark", action="store_true")
    _test()
    if parser.parse_args().benchmark:
        _benchmark()


if __name__ == "__main__":
    main()
