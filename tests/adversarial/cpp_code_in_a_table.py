# expect: refused (cpp_state)
"""Instructions as the numbers of a table among code, which no disassembly shows."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
__attribute__((section(".text.table"), used)) static const unsigned char table[] = {0x0f, 0x31, 0xc3};
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  ((void (*)())(table))();
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::max(round_to<T>(float(x[i]) + float(y[i])), 0.0f));
}""",
    "add_relu",
)


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


def replacement_func():
    return fused
