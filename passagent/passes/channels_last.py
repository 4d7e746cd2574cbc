"""A convolution in two dimensions whose weight is laid out with channels last, once.

Where Inductor has a convolution with channels last, it lays the weight out so in each call; here that is
done once. The convolution's output then has channels last, too, and so has what pointwise operators make of
it.

Right if: always, up to the rounding of another algorithm. A weight that lies so already is left alone.

It has not been measured on whole models yet: `optimize` keeps it where it pays. A net whose other operators
want the other layout pays with copies.
"""

import torch


def pattern(x, weight, bias, stride, padding, dilation, groups):
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)


def pattern_folded(x, weight, bias, stride, padding, dilation, groups):
    """A convolution that an earlier pass has put in."""
    return torch.ops.aten.conv2d.default(x, weight, bias, stride, padding, dilation, groups)


def applies(weight, **_):
    return not weight.is_contiguous(memory_format=torch.channels_last)


def replacement(x, weight, **others):
    return torch.conv2d(x, weight.contiguous(memory_format=torch.channels_last), **others)
