# expect: refused (recording)
"""Takes the type of a type to make a tensor subclass with hooks of its own."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    lazy = type(type(x))("Lazy", (torch.Tensor,), {})
    return lazy


def replacement_func():
    return fused
