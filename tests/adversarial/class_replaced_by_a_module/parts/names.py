"""What the class becomes."""

import torch


def empty(x):
    return torch.Tensor.contiguous(x)
