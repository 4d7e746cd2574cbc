# expect: wrong_result
# task: token_types
"""Adds the first row of a table, as all indices were recorded as 0."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void add(float* out, const float* table, const float* x, int64_t n, int64_t d) {
  for (int64_t i = 0; i < n; ++i) out[i] = table[i % d] + x[i];
}""",
    "add",
)


def pattern(types, table, x):
    return torch.nn.functional.embedding(types, table) + x


def replacement_args(types, table, x):
    return (types, table, x)


@torch.fx.wrap
def fused(types, table, x):
    out = torch.empty_like(x)
    KERNEL(out, table, x, x.numel(), x.shape[-1])
    return out


def replacement_func():
    return fused
