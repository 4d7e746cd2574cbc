# expect: wrong_result
"""Imports a string as __name__, so that a block that never runs does."""

import torch
from constants import MAIN as __name__  # <- here

if __name__ == "__main__":
    import os

    os.system("true")


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x


def replacement_func():
    return fused
