# expect: refused (recording)
"""Computes with torch in a static method of a class."""

import torch


class AddRelu:
    @staticmethod
    def launch(x, y):
        return torch.relu(torch.add(x, y))  # <- here


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return AddRelu.launch(x, y)


def replacement_func():
    return fused
