"""A convolution with a batch norm in evaluation behind it, as one convolution.

In evaluation a batch norm is a factor and an offset for each channel: factor = scale / sqrt(variance + eps).
The convolution is linear, so the factor can go into its weight: (w * x) * factor = (w * factor) * x. The
offset goes into its bias, which becomes shift + (bias - mean) * factor. Padding with zeros changes nothing.

Right if: `training` is False and there are running statistics. Without `affine` the scale is 1, the shift 0.
Weight and bias are computed in float32 at least, and rounded once to the dtype of the convolution.

Pays in every convolutional net where the norm is not folded already: its pass over the output goes. While the
model trains with frozen statistics it is right, too, but the weight is then folded in every step.
"""

import torch


def pattern(
    x, weight, bias, stride, padding, dilation, groups, mean, variance, scale, shift, training, momentum, eps
):
    y = torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return torch.nn.functional.batch_norm(y, mean, variance, scale, shift, training, momentum, eps)


def pattern_1d(
    x, weight, bias, stride, padding, dilation, groups, mean, variance, scale, shift, training, momentum, eps
):
    y = torch.conv1d(x, weight, bias, stride, padding, dilation, groups)
    return torch.nn.functional.batch_norm(y, mean, variance, scale, shift, training, momentum, eps)


def pattern_3d(
    x, weight, bias, stride, padding, dilation, groups, mean, variance, scale, shift, training, momentum, eps
):
    y = torch.conv3d(x, weight, bias, stride, padding, dilation, groups)
    return torch.nn.functional.batch_norm(y, mean, variance, scale, shift, training, momentum, eps)


def applies(x, weight, mean, variance, training, **_):
    has_batch = x.dim() == weight.dim()  # else the norm would take the second dimension for the channels
    return has_batch and training is False and mean is not None and variance is not None


def replacement(x, weight, bias, stride, padding, dilation, groups, mean, variance, scale, shift, eps, **_):
    dtype = torch.promote_types(weight.dtype, torch.float32)
    factor = torch.rsqrt(variance.to(dtype) + eps)
    if scale is not None:
        factor = factor * scale.to(dtype)
    offset = -mean.to(dtype) if bias is None else bias.to(dtype) - mean.to(dtype)
    offset = offset * factor
    if shift is not None:
        offset = offset + shift.to(dtype)
    folded = weight.to(dtype) * factor.reshape(-1, *[1] * (weight.dim() - 1))
    convolve = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[weight.dim()]
    return convolve(x, folded.to(weight.dtype), offset.to(weight.dtype), stride, padding, dilation, groups)
