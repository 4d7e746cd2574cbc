# expect: runtime_error
"""Walks from a generator's frame to the evaluator's."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    frame = (i for i in ()).gi_frame.f_back  # <- here
    return frame


def replacement_func():
    return fused
