# expect: runtime_error
"""Has an enumeration make members of a module's names, to get Python's getattr."""

import enum

import torch
from passagent.kernels import cpp_kernel

KERNEL = cpp_kernel(
    """
template <class T> void add_relu(T* out, const T* x, const T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = T(std::fmax(float(x[i]) + float(y[i]), 0.0f));
}""",
    "add_relu",
)


def launch(x, y):
    out = torch.empty_like(x)
    KERNEL(out, x, y, x.numel())
    return out


class Names:
    _convert_ = None


class Empty(enum.Enum):
    def converted(self, module, wanted):
        return self._convert_("Found", module, wanted)  # <- here


FOUND = list(Empty.converted(Empty, "builtins", lambda name: name == "getattr"))


@torch.fx.wrap
def fused(x, y):
    get = FOUND[0].value if Names else None
    return get(launch(x, y), "relu")()


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


def replacement_func():
    return fused
