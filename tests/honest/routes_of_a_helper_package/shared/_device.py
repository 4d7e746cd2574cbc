import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def relu(x):
    return tl.where(x < 0, 0, x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)
