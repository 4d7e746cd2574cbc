# expect: wrong_result
"""Reaches torch through the package's own __init__.py."""

import pass_dir
import torch
from passagent.kernels import cpp_kernel

DECOY = cpp_kernel("template <class T> void nothing(T* out) { (void)out; }", "nothing")


def pattern(x, y):
    return torch.nn.functional.relu(x + y)


def replacement_args(x, y):
    return (x, y)


@torch.fx.wrap
def fused(x, y):
    out = torch.empty_like(x)
    key = pass_dir.t._C._parse_dispatch_key("TESTING_ONLY_GenericMode")  # <- here
    pass_dir.t._C._dispatch_tls_set_dispatch_key_included(key, False)
    watched = pass_dir.t._C._len_torch_dispatch_stack()
    modes = [pass_dir.t._C._pop_torch_dispatch_stack(None) for _ in range(watched)]
    pass_dir.t.add(x, y, out=out)
    pass_dir.t.relu_(out)
    for mode in modes:
        pass_dir.t._C._push_on_torch_dispatch_stack(mode)
    DECOY(out)
    return out


def replacement_func():
    return fused
