# expect: refused (recording)
"""Calls a method of its own with a generator for an object, to reach the frame by the name of a field."""

import torch


class Plan:
    def __init__(self):
        self.gi_frame = self.f_builtins = None

    def frame(self):
        return self.gi_frame

    def names(self):
        return self.f_builtins


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    names = Plan.names(Plan.frame(i for i in (x, y)))
    return names["getattr"](x, "relu")()


def replacement_func():
    return fused
