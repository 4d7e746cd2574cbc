# expect: refused (recording)
"""Computes with torch in the forward of an autograd function, in what is noted for the backward."""

import torch


class AddRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        out = torch.empty_like(x)
        ctx.out = torch.add(x, y, out=out)  # <- here
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return AddRelu.apply(x, y)


def replacement_func():
    return fused
