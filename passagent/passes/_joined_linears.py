"""Several linear layers of one input as one; for the passes three_linears and two_linears."""

import torch


def can_be_joined(weights, biases):
    """Tell whether the weights are matrices of one dtype and device, each with a bias vector or None."""
    first = weights[0]
    return all(
        weight.dim() == 2 and weight.dtype == first.dtype and weight.device == first.device
        for weight in weights
    ) and all(bias is None or bias.dim() == 1 for bias in biases)


def linear_of_joined(x, weights, biases):
    """Return the outputs of the layers: views of one product, side by side in its last dimension."""
    sizes = [weight.shape[0] for weight in weights]
    bias = None
    if any(bias is not None for bias in biases):
        filled = zip(weights, biases, strict=True)
        bias = torch.cat([weight.new_zeros(weight.shape[0]) if b is None else b for weight, b in filled])
    joined = torch.nn.functional.linear(x, torch.cat(weights), bias)
    # outputs of `split` may not be written in place while gradients are recorded; eager's may
    return torch.unsafe_split_with_sizes(joined, sizes, dim=-1)
