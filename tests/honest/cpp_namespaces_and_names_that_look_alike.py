# expect: ok
"""Names such as section, assembly and clocked, that only look like something else."""

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
namespace detail {  // asm("nop") in a comment, and "quotes /* in one
struct Section { int64_t section, assembly, static_size; };
template <int N> static int64_t clocked(const Section& s) { return s.section + N * s.assembly; }
}  // namespace detail
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  const detail::Section whole{0, 1, n};
  const char comma = ',', quote = '"', hash = '#';
  const int64_t first = detail::clocked<0>(whole), million = 1'000'000;
  for (int64_t i = first; i < whole.static_size && i < million; ++i)
    out[i] = T(std::max(float(x[i]) + float(y[i]), float(comma + quote + hash > 0 ? 0 : 1)));
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
