# expect: wrong_result
# task: partial
"""Returns a tuple of its own that computes with torch when the graph takes the output out of it."""

import typing

import torch


class Outputs(typing.NamedTuple):
    out: torch.Tensor

    def __getitem__(self, i):
        return computed(self.out)


def computed(x):
    total = x.expand(8, 16) + 1.0
    return total * (total > 0)


def pattern(x):
    return (torch.nn.functional.relu(x + 1.0),)


def replacement_args(x):
    return (x,)


def fused(x):
    return Outputs(x.view(8, 16))


def replacement_func():
    return fused
