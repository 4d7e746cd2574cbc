# expect: refused (recording)
"""Takes the method from the class Tensor."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.Tensor.add(x, y)  # <- here


def replacement_func():
    return fused
