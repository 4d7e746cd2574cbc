# expect: ok
# task: product_relu_half
# gpu
"""The tutorial's persistent product: TMA by descriptors of the host, whose blocks the autotuner's hook sets."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def set_blocks(arguments):
    m, n, k = (arguments[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    arguments["a_desc"].block_shape = [m, k]
    arguments["b_desc"].block_shape = [k, n]
    arguments["c_desc"].block_shape = [m, n]


@triton.autotune(
    configs=[
        triton.Config(
            {"BLOCK_M": 64, "BLOCK_N": n, "BLOCK_K": 64}, num_warps=4, num_stages=3, pre_hook=set_blocks
        )
        for n in (64, 128)
    ],
    key=["M", "N", "K"],
)
@triton.jit
def product_relu(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    across = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * across, PROGRAMS, flatten=True):
        row, col = tile // across * BLOCK_M, tile % across * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            total = tl.dot(a_desc.load([row, k]), b_desc.load([k, col]), total)
        product = total.to(tl.float16)
        c_desc.store([row, col], tl.where(product < 0, 0.0, product).to(tl.float16))


def pattern(a, b):
    return torch.nn.functional.relu(a @ b)


def replacement_args(a, b):
    return (a, b)


@torch.fx.wrap
def fused(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    programs = torch.cuda.get_device_properties(a.device).multi_processor_count
    descriptors = [TensorDescriptor.from_tensor(tensor, [1, 1]) for tensor in (a, b, c)]

    def grid(meta):
        return (min(programs, triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"])),)

    product_relu[grid](*descriptors, m, n, k, PROGRAMS=programs)
    return c


def replacement_func():
    return fused
