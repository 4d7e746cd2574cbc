"""A convolution whose stride is its kernel, as a product of its patches with the weight.

Vision transformers embed their patches so, ConvNeXt downsamples so. Such a convolution reads each element of
its input at most once. So its patches are a reshape and a permutation of the input, and the convolution is
one linear layer of them. Where a size is no multiple of the patch, no window reads the rest: it is cut off.

Right if: stride = kernel, no padding, dilation 1, one group. The output is the linear layer's, with channels
last in memory: the flatten and transpose that usually follow are then views.

Pays where the library's convolution is made for overlapping windows: large patches of few channels on a GPU.
A kernel of 1 is left alone: it is a product already. Small patches of many channels gain less.
"""

import math

import torch


def pattern(x, weight, bias, stride, padding, dilation, groups):
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)


def pattern_1d(x, weight, bias, stride, padding, dilation, groups):
    return torch.conv1d(x, weight, bias, stride, padding, dilation, groups)


def pattern_3d(x, weight, bias, stride, padding, dilation, groups):
    return torch.conv3d(x, weight, bias, stride, padding, dilation, groups)


def applies(x, weight, stride, padding, dilation, groups, **_):
    kernel = tuple(weight.shape[2:])
    return (
        x.dim() == weight.dim()  # an input without a batch is rare, and would need other code
        and math.prod(kernel) > 1
        and _each(stride, kernel) == kernel
        and (padding == "valid" or not any(_each(padding, kernel)))
        and all(step == 1 for step in _each(dilation, kernel))
        and groups == 1
    )


def replacement(x, weight, bias, **_):
    batch, channels, *sizes = x.shape
    kernel = weight.shape[2:]
    counts = [size // length for size, length in zip(sizes, kernel, strict=True)]
    for dim, (count, length) in enumerate(zip(counts, kernel, strict=True), start=2):
        x = x.narrow(dim, 0, count * length)
    split = [part for pair in zip(counts, kernel, strict=True) for part in pair]
    x = x.reshape(batch, channels, *split)  # (batch, channels, count 1, length 1, count 2, length 2, ...)
    across, within = range(2, x.dim(), 2), range(3, x.dim(), 2)
    if x.stride(1) == 1:  # channels last in memory: they stay innermost, so that a patch is read in long runs
        x, weight = x.permute(0, *across, *within, 1), weight.movedim(1, -1)
    else:
        x = x.permute(0, *across, 1, *within)
    patches = x.reshape(batch, *counts, channels * math.prod(kernel))
    return torch.nn.functional.linear(patches, weight.flatten(1), bias).movedim(-1, 1)


def _each(value, kernel):
    """The value of each dimension: an int, or a tuple of one value, stands for all of them."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * len(kernel) if len(values) == 1 else values
