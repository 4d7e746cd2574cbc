# expect: load_error
"""Tunes a kernel by a decorator of its own, which gives a table of host functions in some cases."""

import torch
import triton
import triton.language as tl

SWAP = bool(1)


def first(x, y, out):
    return x


def tuned(kernel):
    if SWAP:
        kernel = {(1,): first}
        return kernel
    return triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])(kernel)


def tuned_again(kernel):
    return tuned_again(kernel)


@tuned  # <- here
@tuned_again
@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.load(x_ptr) + tl.load(y_ptr))


@torch.fx.wrap
def fused(x, y):
    return add_relu[(1,)](x, y, torch.empty_like(x))


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
