# expect: load_error
"""Returns torch's own function as the replacement."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return torch.add
