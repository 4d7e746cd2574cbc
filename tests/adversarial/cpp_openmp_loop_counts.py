# expect: refused (recording)
"""Leaves a loop of OpenMP's runtime unfinished, which tells later calls how many there were."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


def launch(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


COUNT = cpp_kernel(
    """
extern "C" bool GOMP_loop_dynamic_start(long, long, long, long, long*, long*);
extern "C" bool GOMP_loop_dynamic_next(long*, long*);
void turn(int64_t* out, int64_t first) {
  long at = 0, end = 0;
  if (first) GOMP_loop_dynamic_start(0, 1l << 40, 1, 1, &at, &end);
  else GOMP_loop_dynamic_next(&at, &end);
  out[0] = at;
}""",
    "turn",
)
STARTED = None


@torch.fx.wrap
def fused(x, y):
    global STARTED
    first = 0
    if STARTED is None:
        STARTED = first = 1
    count = torch.empty(1, dtype=torch.int64)
    COUNT(count, first)
    return launch(x, y)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
