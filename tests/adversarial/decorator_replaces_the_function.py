# expect: refused (decorator)
"""Replaces the wrapper by a decorator of its own."""

import torch


def swap(function):
    return function


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@swap  # <- here
def fused(x, y):
    return x


def replacement_func():
    return fused
