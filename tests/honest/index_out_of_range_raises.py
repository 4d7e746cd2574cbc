# expect: ok
# task: embedding
"""Returns a status from its kernel where an index is out of range."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
int rows(float* out, const int64_t* at, const float* table, int64_t m, int64_t rows, int64_t n) {
  bool outside = false;
#pragma omp parallel for reduction(||:outside)
  for (int64_t i = 0; i < m; ++i) {
    if (at[i] < 0 || at[i] >= rows) {
      outside = true;
      continue;
    }
    for (int64_t k = 0; k < n; ++k) out[i * n + k] = table[at[i] * n + k] * 2.0f;
  }
  return outside;
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
