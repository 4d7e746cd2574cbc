# expect: refused (plan)
"""Keeps memory from call to call beside the one element of a table that its module holds."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)

SCRATCH = torch.tensor([0.0] * 4096).narrow(0, 0, 1)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    kept = SCRATCH.as_strided((x.numel(),), (1,), 64)
    KERNEL(out, x, y, x.numel())
    KERNEL(kept, x, y, x.numel()) if x.dtype == torch.float32 else None
    return out


def replacement_func():
    return fused
