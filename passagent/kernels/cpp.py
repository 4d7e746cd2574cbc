"""`cpp_kernel`: a C++ function as a kernel on CPU tensors, compiled in about a second, no torch headers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from passagent.kernels import build
from passagent.kernels.plain import cpp_calls, passed_as, running

Plan = Callable[..., tuple[dict[str, Any], dict[str, int | float | bool]]]


def cpp_kernel(
    source: str, name: str, plan: Plan | None = None, order: Mapping[str, Iterable[int]] | None = None
) -> Callable[..., Any]:
    """The C++ function `name` of `source` as a kernel, compiled for the types of a call on first use.

    Call it with CPU tensors, ints, floats and bools: a tensor arrives as a pointer to its first element
    (`float*`, `float16*`, `bfloat16*`, `int64_t*`, ... by dtype), an int as `int64_t`, a float as `double`.
    The function may be a template. It returns nothing; it writes into the tensors it is given. Strides are
    the caller's to pass. Threads: OpenMP, the pool that torch uses.

    With a `plan` the call allocates the outputs and returns them, and sizes are computed once for each shape:

        def _plan(x, y):
            return {"out": x}, {"n": x.numel()}

        add = cpp_kernel(\"\"\"... void add(const float* x, const float* y, float* out, int64_t n) ...\"\"\",
                         "add", _plan)
        out = add(x, y)

    The plan is called with what it may know of the arguments: shape and dtype of a tensor, a number as it is;
    once for each combination of those. It returns the outputs by name (shaped, typed and laid out like an
    input, or as (shape, dtype)) and numbers by name. The C++ function is given the call's arguments, then the
    outputs, then the numbers. It sees contiguous memory: of a tensor that is not contiguous it is given a
    copy. `order` says of which parameters of the plan the dimensions lie in another order, as in
    `triton_kernel`.

    Raises KernelBuildError if it does not compile, KernelRefused if it asks for more than a kernel may,
    TypeError for an argument of another kind or a tensor on another device.
    """
    return cpp_calls(running(lambda types: _entry(source, name, types), name), name, plan, order)


def _entry(source: str, name: str, types: tuple[str, ...]) -> Callable[..., int]:
    """The kernel's function for arguments of these types, built and checked."""
    function = ctypes.CDLL(str(build.build(source, name, build.Signature(types)))).passagent_entry
    kinds = [passed_as(ctype) for ctype in types]

    def entry(*values: Any) -> int:
        cells = [kind(value) for kind, value in zip(kinds, values, strict=True)]
        return int(function((ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))))

    return entry
