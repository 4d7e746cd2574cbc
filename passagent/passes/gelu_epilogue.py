"""A linear layer and gelu by its tanh formula, as the library's product with bias and gelu in its epilogue.

`torch._addmm_activation` computes gelu(bias + x @ weight.T), on CUDA by the tanh formula and on the result of
the product before it is rounded. The library offers it for a matrix; further dimensions of x are flattened.
The operator is private to torch, and has no derivative.

Right if: on CUDA (a CPU computes the other gelu there), float16 or bfloat16, with a bias, and where no
gradient is asked for.

Pays where the hidden layer is large: it is written once, not written, read and written. Small or oddly sized
products may be faster by the kernel that the library chooses without an epilogue.
"""

import math

import torch


def pattern(x, weight, bias):
    y = torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.gelu(y, approximate="tanh")


def pattern_written_out(x, weight, bias):
    y = torch.nn.functional.linear(x, weight, bias)
    inner = math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))
    return 0.5 * y * (1.0 + torch.tanh(inner))


def applies(x, weight, bias):
    if bias is None or bias.dim() != 1 or weight.dim() != 2:
        return False
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias))
    low_precision = x.dtype in (torch.float16, torch.bfloat16)
    return x.device.type == "cuda" and low_precision and not needs_gradient


def replacement(x, weight, bias):
    rows = x.reshape(-1, weight.shape[1])
    y = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return y.reshape(*x.shape[:-1], weight.shape[0])
