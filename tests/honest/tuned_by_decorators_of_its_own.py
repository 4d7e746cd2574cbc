# expect: ok
"""Tunes its kernels by decorators of its own: a factory, a function of the kernel, and one kept in a name."""

import functools

import torch
import triton
import triton.language as tl

TUNE = True


def tuned(*keys, blocks=(64, 256)):
    """Every block with every number of warps."""
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in blocks for warps in (4, 8)]
    return triton.autotune(configs=configs, key=list(keys))


def with_keys(keys):
    def wrap(kernel):
        chosen = triton.autotune(configs=[triton.Config({"BLOCK": 128})], key=keys)
        return chosen(kernel) if TUNE else kernel

    return wrap


def even(kernel):
    return triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(kernel)


by_length = functools.partial(triton.autotune, key=["n"])
wide = triton.autotune(configs=[triton.Config({"BLOCK": 512}, num_warps=8)], key=["n"])


@tuned("n", blocks=(64, 128))
@triton.jit
def _kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    a = tl.load(x_ptr + offs, mask=m, other=0.0).to(tl.float32)
    b = tl.load(y_ptr + offs, mask=m, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, a + b, mask=m)


@with_keys(["n"])
@triton.jit
def _relu(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out_ptr + offs,
        tl.maximum(tl.load(x_ptr + offs, mask=offs < n), 0.0, propagate_nan=tl.PropagateNan.ALL),
        mask=offs < n,
    )


@wide
@even
@triton.jit
def _copy(x_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs))
    else:
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@by_length(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 512}, num_warps=8)])
@triton.jit
def _sum(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=m) + tl.load(y_ptr + offs, mask=m), mask=m)


def fused(x, y):
    total = torch.empty_like(x)
    relu, out = torch.empty_like(x), torch.empty_like(x)
    n = out.numel()

    def grid(meta):
        return (triton.cdiv(n, meta["BLOCK"]),)

    (_kernel if n % 2 else _sum)[grid](x, y, total, n)
    _relu[grid](total, relu, n)
    _copy[grid](relu, out, n)
    return out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
