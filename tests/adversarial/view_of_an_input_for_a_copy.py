# expect: wrong_result
# task: copied
"""Returns a view of its input where eager copies."""

import torch


def pattern(x):
    return x.transpose(0, 1).clone()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    return x.transpose(0, 1)


def replacement_func():
    return fused
