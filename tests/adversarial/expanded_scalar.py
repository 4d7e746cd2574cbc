# expect: refused or wrong_result or runtime_error
"""Returns one element expanded to the shape, with strides of zero."""

import torch


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    return x.new_zeros(1).expand(x.shape)


def replacement_func():
    return fused
