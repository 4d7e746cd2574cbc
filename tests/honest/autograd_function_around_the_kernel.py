# expect: ok
# task: layer_norm
"""Launches in the forward of a torch.autograd.Function, which keeps settings and reads them back; by versions."""

import functools

import torch
import triton
import triton.language as tl
from packaging.version import Version
from torch.autograd import Function

MAX_FUSED_SIZE: int = 65536

if Version(torch.__version__) < Version("2.4.0"):
    custom_fwd, custom_bwd = torch.cuda.amp.custom_fwd, torch.cuda.amp.custom_bwd
else:
    custom_fwd = torch.amp.custom_fwd(device_type="cuda")
    custom_bwd = torch.amp.custom_bwd(device_type="cuda")

if Version(triton.__version__) >= Version("3.0.0"):
    from triton.language.extra import libdevice

    rsqrt = libdevice.rsqrt
else:
    rsqrt = tl.math.rsqrt


@functools.lru_cache(1)
def get_device_count():
    return torch.cuda.device_count()


def calculate_settings(n: int) -> (int, int):
    BLOCK_SIZE: int = triton.next_power_of_2(n)
    if BLOCK_SIZE > MAX_FUSED_SIZE:
        raise RuntimeError(f"n = {n} exceeds the maximum CUDA blocksize = {MAX_FUSED_SIZE}.")
    return BLOCK_SIZE, 32 if BLOCK_SIZE >= 32768 else 4


@triton.jit
def norm(
    Y, Y_row_stride, X, X_row_stride, W, B, r, mu, n_cols: tl.constexpr, eps: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """
    References:
    https://arxiv.org/abs/1607.06450
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    Y += row * Y_row_stride
    X += row * X_row_stride
    x = tl.load(X + columns, mask=mask, other=0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    centred = tl.where(mask, x - mean, 0.0)
    inverse = rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    tl.store(r + row, inverse)
    tl.store(mu + row, mean)
    w, b = tl.load(W + columns, mask=mask), tl.load(B + columns, mask=mask)
    tl.store(Y + columns, (centred * inverse * w + b).to(Y.dtype.element_ty), mask=mask)


class FusedLayerNorm(Function):
    """As in the libraries for training."""

    @staticmethod
    @custom_fwd
    def forward(ctx, X, W, B, eps):
        shape = X.shape
        X = X.view(-1, shape[-1])
        ctx.n_rows, ctx.n_cols = X.shape
        ctx.BLOCK_SIZE, ctx.num_warps = calculate_settings(ctx.n_cols)
        Y = torch.empty((ctx.n_rows, ctx.n_cols), dtype=X.dtype, device=X.device)
        r, mu = (torch.empty(ctx.n_rows, dtype=torch.float32, device=X.device) for _ in range(2))
        assert X.shape[1] == W.shape[0], f"Incompatible hidden size: {X.shape[1]} and {W.shape[0]}"
        strides = Y.stride(0), X.stride(0)
        norm[(ctx.n_rows,)](
            Y, strides[0], X, strides[1], W, B, r, mu, ctx.n_cols, eps, BLOCK=ctx.BLOCK_SIZE, num_warps=ctx.num_warps
        )  # fmt: skip
        ctx.eps = eps
        ctx.save_for_backward(X, W, r, mu)
        return Y.view(*shape)

    @staticmethod
    @custom_bwd
    def backward(ctx, grad):
        x, w, r, _ = ctx.saved_tensors
        return grad * w * r, None, None, None


layer_norm = FusedLayerNorm.apply


def pattern(x, w, b):
    return torch.nn.functional.layer_norm(x, (24,), w, b, 1e-05)


def replacement_args(x, w, b):
    return (x, w, b, 1e-05)


@torch.fx.wrap
def fused(x, w, b, eps):
    return layer_norm(x, w, b, eps)


def replacement_func():
    return fused
