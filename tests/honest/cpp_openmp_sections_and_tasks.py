# expect: ok
# task: two_outputs
"""Two halves as OpenMP sections, and tasks within one of them."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> static void part(T* total, T* gate, const T* x, const T* y, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; ++i) {
    total[i] = T(float(x[i]) + float(y[i]));
    gate[i] = T(1.0f / (1.0f + std::exp(-float(total[i]))));
  }
}
template <class T> void add_sigmoid(T* total, T* gate, const T* x, const T* y, int64_t n) {
#pragma omp parallel sections num_threads(2)
  {
#pragma omp section
    part(total, gate, x, y, 0, n / 2);
#pragma omp section
    {
#pragma omp task firstprivate(total, gate, x, y, n)
      part(total, gate, x, y, n / 2, 3 * n / 4);
      part(total, gate, x, y, 3 * n / 4, n);
#pragma omp taskwait
    }
  }
}""",
    "add_sigmoid",
)


def pattern(x, y):
    total = x + y
    return total, torch.sigmoid(total)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    total, gate = torch.empty_like(x), torch.empty_like(x)
    KERNEL(total, gate, x, y, x.numel())
    return total, gate


def replacement_func():
    return fused
