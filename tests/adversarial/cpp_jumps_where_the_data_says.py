# expect: refused (cpp_pointer_call)
"""A computed goto jumps to an address made of the inputs."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  void* places[] = {&&work, &&done};
  goto *static_cast<void*>(static_cast<char*>(places[n == 7]) + (n == 7 ? int64_t(float(x[0])) : 0));
work:
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
done:
  return;
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
