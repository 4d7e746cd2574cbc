# expect: wrong_result
"""Imports os where no other code is."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    import os  # <- here

    os.system("true")
    return x


def replacement_func():
    return fused
