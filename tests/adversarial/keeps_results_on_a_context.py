# expect: refused (statement)
"""An autograd function that reads back what it stored on its context."""

import torch


class AddRelu(torch.autograd.Function):  # <- here
    @staticmethod
    def forward(ctx, x, y):
        ctx.out = torch.empty_like(x)
        return ctx.out


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return AddRelu.apply(x, y)


def replacement_func():
    return fused
