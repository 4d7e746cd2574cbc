# expect: wrong_result
"""Hides code in a string annotation and has typing evaluate it."""

import typing

import torch


def hinted(x: "__import__('os').system('true')"):
    return x


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    typing.get_type_hints(hinted)  # <- here
    return x


def replacement_func():
    return fused
