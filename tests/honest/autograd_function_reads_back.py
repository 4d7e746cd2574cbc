# expect: ok
# task: layer_norm
"""An autograd function's forward uses what it noted on its context."""

import torch
import triton
import triton.language as tl


def calculate_settings(n):
    MAX_FUSED_SIZE = 65536
    BLOCK_SIZE = triton.next_power_of_2(n)
    if BLOCK_SIZE > MAX_FUSED_SIZE:
        raise RuntimeError(
            f"Cannot launch Triton kernel since n = {n} exceeds the recommended Triton blocksize = {MAX_FUSED_SIZE}."
        )
    num_warps = 4
    if BLOCK_SIZE >= 32768:
        num_warps = 32
    elif BLOCK_SIZE >= 8192:
        num_warps = 16
    elif BLOCK_SIZE >= 2048:
        num_warps = 8
    return BLOCK_SIZE, num_warps


@triton.jit
def _layer_norm_forward_kernel(
    Y_ptr,  # pointer to output, shape (n_rows, n_cols)
    Y_row_stride,  # stride of each row in output
    X_ptr,  # pointer to input, shape (n_rows, n_cols)
    X_row_stride,  # stride of each row in input
    W_ptr,
    W_row_stride,
    B_ptr,
    B_row_stride,
    Mean_ptr,
    Mean_row_stride,
    RSTD_ptr,
    RSTD_row_stride,
    n_cols,
    eps,
    BLOCK_SIZE: tl.constexpr,
):
    """
    References:
    https://arxiv.org/abs/1607.06450
    """
    row_idx = tl.program_id(0).to(tl.int64)
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    W_row = tl.load(W_ptr + col_offsets, mask=mask, other=0)
    B_row = tl.load(B_ptr + col_offsets, mask=mask, other=0)
    row_X_ptr = X_ptr + row_idx * X_row_stride
    row_Y_ptr = Y_ptr + row_idx * Y_row_stride
    row_Mean_ptr = Mean_ptr + row_idx * Mean_row_stride
    row_RSTD_ptr = RSTD_ptr + row_idx * RSTD_row_stride
    X_row = tl.load(row_X_ptr + col_offsets, mask=mask, other=0)
    X_f32 = X_row.to(tl.float32)
    mean = tl.sum(X_f32, axis=0) / n_cols
    X_centered = tl.where(mask, X_f32 - mean, 0.0)
    var = tl.sum(X_centered * X_centered, axis=0) / n_cols
    rstd = tl.rsqrt(var + eps)
    tl.store(row_Mean_ptr, mean)
    tl.store(row_RSTD_ptr, rstd)
    output = X_centered * rstd * W_row + B_row
    tl.store(row_Y_ptr + col_offsets, output.to(X_row.dtype), mask=mask)


class LigerLayerNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, W, B, eps):
        shape = X.shape
        dim = shape[-1]
        X = X.view(-1, dim)
        ctx.n_rows, ctx.n_cols = X.shape
        ctx.BLOCK_SIZE, ctx.num_warps = calculate_settings(ctx.n_cols)
        n_rows, n_cols = X.shape
        Y = torch.empty((ctx.n_rows, ctx.n_cols), dtype=X.dtype, device=X.device)
        Mean = torch.empty(n_rows, dtype=X.dtype, device=X.device)
        RSTD = torch.empty(n_rows, dtype=X.dtype, device=X.device)
        assert X.shape[1] == W.shape[0], (
            f"Incompatible hidden size dimension between input tensor with shape[1] = {X.shape[1]} "
            f"and weight tensor with shape[0] = {W.shape[0]}"
        )
        _layer_norm_forward_kernel[(n_rows,)](
            Y,
            Y.stride(0),
            X,
            X.stride(0),
            W,
            W.stride(0),
            B,
            B.stride(0),
            Mean,
            Mean.stride(0),
            RSTD,
            RSTD.stride(0),
            n_cols,
            eps,
            BLOCK_SIZE=ctx.BLOCK_SIZE,
            num_warps=ctx.num_warps,
        )
        ctx.save_for_backward(X, W, B, Mean, RSTD)
        return Y.view(*shape)

    @staticmethod
    def backward(ctx, dY):
        X, W, B, Mean, RSTD = ctx.saved_tensors
        raise NotImplementedError


def fused(x, w, b):
    return LigerLayerNormFunction.apply(x, w, b, 1e-5)


def pattern(x, w, b):
    return torch.nn.functional.layer_norm(x, (24,), w, b, 1e-05)


def replacement_args(x, w, b):
    return (x, w, b)


def replacement_func():
    return fused
