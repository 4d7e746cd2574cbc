"""The tail, through the same function."""

import torch
from shared import dispatch


def pattern(x):
    return torch.tanh(x * 2.0)


def replacement_args(x):
    return (x, "double_tanh")


def replacement_func():
    return dispatch
