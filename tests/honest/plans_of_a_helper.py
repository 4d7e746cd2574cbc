# expect: ok
"""Takes a plan from a helper module, whose fields and properties are named like a tensor's methods."""

import torch
from plans import DEFAULT, Route


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    kernel = DEFAULT.mode.kernel if DEFAULT.tile > 0 else Route.ALL.kernel
    kernel(out, x, y, out.numel())
    return out


def replacement_func():
    return fused
