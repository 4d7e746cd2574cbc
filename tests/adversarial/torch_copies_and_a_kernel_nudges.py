# expect: refused (delegated_copy)
# task: transpose_copy
"""Torch does the transposing copy; a kernel changes one element by one unit in the last place."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void nudge(float* out) { out[0] = std::nextafter(out[0], 1e30f); }""",
    "nudge",
)


def pattern(x):
    return x.transpose(0, 1).contiguous()


def replacement_args(x):
    return (x,)


@torch.fx.wrap
def fused(x):
    out = x.transpose(0, 1).contiguous()
    KERNEL(out)
    return out


def replacement_func():
    return fused
