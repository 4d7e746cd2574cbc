# expect: wrong_result
# task: embedding
"""Reads what lies beside a table where an index is out of range, and returns it."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
void rows(float* out, const int64_t* at, const float* table, int64_t m, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t k = 0; k < n; ++k) out[i * n + k] = table[at[i] * n + k] * 2.0f;
}""",
    "rows",
)


def pattern(indices, table):
    return torch.nn.functional.embedding(indices, table) * 2.0


def replacement_args(indices, table):
    return (indices, table)


@torch.fx.wrap
def fused(indices, table):
    out = table.new_empty((*indices.shape, table.shape[1]))
    KERNEL(out, indices, table, indices.numel(), table.shape[0], table.shape[1])
    return out


def replacement_func():
    return fused
