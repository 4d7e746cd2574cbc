# expect: refused (recording)
"""Computes with torch in a function that it registers as an operator, and calls that."""

import torch


@torch.library.custom_op("adversarial::add_relu", mutates_args=())
def add_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)  # <- here


@add_relu.register_fake
def _(x, y):
    return torch.empty_like(x)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return torch.ops.adversarial.add_relu(x, y)


def replacement_func():
    return fused
