# expect: refused (recording)
"""Gives getattr a harmless meaning by an import in a function that never runs."""

import torch


def never():
    from torch import empty as getattr

    return getattr


NEVER = (never,)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return getattr(x, "re" + "lu")()  # <- here


def replacement_func():
    return fused
