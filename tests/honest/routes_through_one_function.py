# expect: ok
# task: two_regions
# INTEGRITY.md, honest design 13
"""Two patterns, one function, told apart by a constant."""

import torch
from shared import dispatch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y, "add_relu")


def replacement_func():
    return dispatch
