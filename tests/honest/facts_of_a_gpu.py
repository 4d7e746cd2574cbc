# expect: ok
"""Asks torch and Triton for the device when it is imported and in every call, and enters it."""

import torch
import triton
import triton.language as tl
from triton.runtime import driver

DEVICE = triton.runtime.driver.active.get_active_torch_device()
TARGET = driver.active.get_current_target()
PROPERTIES = driver.active.utils.get_device_properties(DEVICE.index or 0)
NUM_SMS = torch.cuda.get_device_properties("cuda").multi_processor_count
CAPABILITY = torch.cuda.get_device_capability()
USES_TF32 = torch.backends.cuda.matmul.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
torch_gpu_device = torch.cuda.device


@triton.jit
def add_relu(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, NUM_SMS: tl.constexpr):
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, BLOCK), NUM_SMS):
        offsets = tile * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        x = tl.load(x_ptr + offsets, mask=mask).to(tl.float32)
        y = tl.load(y_ptr + offsets, mask=mask).to(tl.float32)
        tl.store(
            out_ptr + offsets,
            tl.maximum(x + y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(out_ptr.dtype.element_ty),
            mask=mask,
        )


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    assert PROPERTIES["max_shared_mem"] > 0 and CAPABILITY >= (3, 0) and TARGET.backend in ("cuda", "hip")
    out = torch.empty_like(x)
    n = x.numel()
    with torch_gpu_device(x.device):
        block = 64 if torch.cuda.get_device_properties(x.device).major >= 8 and USES_TF32 is not None else 32
        grid = (min(NUM_SMS, triton.cdiv(n, block)),)
        add_relu[grid](x, y, out, n, BLOCK=block, NUM_SMS=NUM_SMS)
    return out


def replacement_func():
    return fused
