# expect: runtime_error
# task: transpose_copy
"""Transposes by building a tensor from a nested list of the input's elements: they are read inside torch's constructor."""

import torch


def pattern(x):
    return x.transpose(0, 1).contiguous()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return x.new_tensor([[x[i][j] for i in range(8)] for j in range(20)])


def replacement_func():
    return fused
