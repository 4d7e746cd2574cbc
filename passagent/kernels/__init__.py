"""The only runtime library that a pass may import beside torch and triton."""

from passagent.kernels.cpp import cpp_kernel
from passagent.kernels.cuda import cuda_kernel
from passagent.kernels.jit import triton_kernel

__all__ = ["cpp_kernel", "cuda_kernel", "triton_kernel"]
