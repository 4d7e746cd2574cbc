"""How a pass's function calls a kernel: through ctypes, or by Triton's own launch.

No measured call goes this way: an evaluation and a package replay plans (plan/replay.py). What `passagent
best --standalone` writes beside a pass is made of this file, too; its `cpp_kernel` shuts no compiler in and
checks no source.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import operator
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from passagent.kernels.layout import Like, Order, laid, orders, row_major, seen, strides
from passagent.kernels.toolchain import FLAGS, HEADERS, LIBRARIES, NOTHING, PRELUDE_TEXT, processor
from passagent.sandbox.cache import cache_dir

CTYPES = {
    torch.float32: "float*",
    torch.float64: "double*",
    torch.float16: "float16*",
    torch.bfloat16: "bfloat16*",
    torch.int64: "int64_t*",
    torch.int32: "int32_t*",
    torch.int16: "int16_t*",
    torch.int8: "int8_t*",
    torch.uint8: "uint8_t*",
    torch.bool: "bool*",
}
SCALARS = {
    int: ("int64_t", ctypes.c_int64),
    float: ("double", ctypes.c_double),
    bool: ("bool", ctypes.c_bool),
}


def cpp_kernel(
    source: str,
    name: str,
    plan: Callable[..., Any] | None = None,
    order: Mapping[str, Iterable[int]] | None = None,
) -> Callable[..., Any]:
    """The C++ function `name` of `source`, compiled for the types of a call's arguments on first use.

    Without a plan it is given the call's arguments. A plan gets shapes, dtypes and numbers and returns the
    outputs by name, which follow the arguments and are returned, and numbers, which follow the outputs.
    `order` says how a parameter lies in memory: the order of its dimensions, outermost first.
    """
    return cpp_calls(running(lambda types: _entry(source, name, types), name), name, plan, order)


def cpp_calls(
    run: Callable[..., None],
    name: str,
    plan: Callable[..., Any] | None,
    order: Mapping[str, Iterable[int]] | None,
) -> Callable[..., Any]:
    """Return what `cpp_kernel` gives; `run` calls the C++ function with all its arguments."""
    if plan is None:
        return run
    parameters = list(inspect.signature(plan).parameters) if order else []

    def launch(inputs: Sequence[Any], grid: Any, outputs: dict[str, Any], numbers: dict[str, Any]) -> None:
        run(*inputs, *outputs.values(), *numbers.values())

    return _planned(lambda *args: (1, *plan(*args)), orders(name, order, parameters), launch, "cpu")


def running(build: Callable[[tuple[str, ...]], Callable[..., int]], name: str) -> Callable[..., None]:
    """A function that calls kernel `name`; `build` makes the kernel for arguments of some C types."""
    entries: dict[tuple[str, ...], Callable[..., int]] = {}

    def run(*args: Any) -> None:
        where = "a C++ kernel takes tensors in the host's memory"
        types = tuple(argument_types(name, args, lambda tensor: tensor.is_cpu, where))
        if types not in entries:
            entries[types] = build(types)
        if entries[types](*(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args)):
            raise IndexError(f"index out of range in self (kernel {name})")

    return run


def triton_kernel(
    plan: Callable[..., Any], order: Mapping[str, Iterable[int]] | None = None, **options: Any
) -> Callable[[Any], Callable[..., Any]]:
    """Make a `@triton.jit` kernel a function that makes its outputs and launches it on the current stream.

        def _plan(x, y):
            n = x.numel()
            return triton.cdiv(n, 1024), {"out": x}, {"n": n, "BLOCK": 1024, "num_warps": 4}

        @triton_kernel(_plan)
        @triton.jit
        def add(x, y, out, n, BLOCK: tl.constexpr): ...

        out = add(x, y)

    A call gives the kernel's first parameters by position. The plan is called with what it may know of them:
    shape and dtype of a tensor, a number as it is; once for each combination of those. It returns the grid
    (an int or a tuple of up to three), the outputs by name (shaped, typed and laid out like an input, or as
    (shape, dtype)), and the other parameters and options of Triton by name; `options` hold for every plan. A
    call returns the outputs in the plan's order: a tensor, or a tuple where there are several.

    The kernel sees contiguous memory: of a tensor that is not contiguous it is given a copy. `order` says of
    which parameters the dimensions lie in another order: `order={"x": (0, 2, 1)}` for an x that is the
    transpose of a contiguous tensor. The kernel is given what lies so as it is, and all else as a copy that
    does. An output as (shape, dtype, order) lies in that order, unless something had to be copied: then all
    are contiguous.
    """

    def decorate(kernel: Any) -> Callable[..., Any]:
        parameters = list(inspect.signature(kernel.fn).parameters)

        def launch(
            inputs: Sequence[Any], grid: Any, outputs: dict[str, Any], numbers: dict[str, Any]
        ) -> None:
            named = dict(zip(parameters, inputs, strict=False))
            launch_triton(kernel, grid, named | outputs | options | numbers)

        return _planned(plan, orders(kernel.fn.__name__, order, parameters), launch, "cuda")

    return decorate


def launch_triton(kernel: Any, grid: Any, named: dict[str, Any]) -> None:
    """Launch a Triton kernel with arguments and options by name."""
    sizes = grid if isinstance(grid, tuple) else (grid,)
    if 0 not in sizes:
        # keeps tl.device_assert, adds none; Triton's interpreter has no such option
        asserts = {"debug": True, "sanitize_overflow": False} if hasattr(kernel, "debug") else {}
        kernel[sizes](**asserts, **named)


def remembering(plan: Callable[..., Any]) -> Callable[..., Any]:
    """The plan, which is asked once for each combination of shapes, dtypes and numbers."""
    plans: dict[Any, Any] = {}

    def ask(*args: Any) -> Any:
        key = args, tuple(map(type, args))
        if key not in plans:
            plans[key] = plan(*args)
        return plans[key]

    return ask


def _planned(
    plan: Callable[..., Any], lying: Sequence[Order], launch: Callable[..., None], device: str
) -> Callable[..., Any]:
    """A function that allocates what the plan says, launches and returns it.

    Tensors that do not lie in their order are copied; then the outputs are contiguous. Where no tensor is
    given, outputs are on `device`.
    """
    ask = remembering(plan)

    def call(*args: Any) -> Any:
        all_orders = (*lying, *[()] * len(args))[: len(args)]
        inputs = tuple(map(laid, args, all_orders))
        grid, outputs, numbers = ask(*map(seen, inputs, all_orders))
        where = next((a.device for a in inputs if isinstance(a, torch.Tensor)), device)
        tensors = {}
        for name, like in ((name, Like(*like)) for name, like in outputs.items()):
            steps = strides(like.shape, like.order)
            tensors[name] = torch.empty_strided(like.shape, steps, dtype=like.dtype, device=where)
        launch(inputs, grid, tensors, numbers)
        results = tuple(tensors.values())
        result = results[0] if len(results) == 1 else results or None
        return result if all(map(operator.is_, args, inputs)) else row_major(result)

    return call


def argument_types(
    name: str, args: Sequence[Any], is_here: Callable[[torch.Tensor], bool], where: str
) -> list[str]:
    """The C types that the arguments of kernel `name` arrive as, in C++ as in CUDA C++.

    Raises TypeError for one that C has no type for, or a tensor that is not here; `where` says what is.
    """
    types = []
    for position, argument in enumerate(args):
        what = f"{name}: argument {position}"
        if isinstance(argument, torch.Tensor):
            if not is_here(argument):
                raise TypeError(f"{what} is a {argument.dtype} tensor on {argument.device}; {where}")
            if argument.dtype not in CTYPES:
                no_type = "for which C has no type; pass a view of another dtype"
                raise TypeError(f"{what} is a {argument.dtype} tensor, {no_type}")
            types.append(CTYPES[argument.dtype])
        elif type(argument) is int and not -(1 << 63) <= argument < 1 << 63:
            raise TypeError(f"{what} is an int beyond 64 bits")
        elif type(argument) in SCALARS:
            types.append(SCALARS[type(argument)][0])
        else:
            raise TypeError(f"{what} is a {type(argument).__name__}; pass tensors, ints, floats or bools")
    return types


def _entry(source: str, name: str, types: tuple[str, ...]) -> Callable[..., int]:
    """The built function for arguments of these types."""
    # HEADERS are read already, NOTHING is empty.
    headers = "|".join(map(re.escape, HEADERS | NOTHING))
    source = re.sub(rf"^[ \t]*#[ \t]*include[ \t]*<(?:{headers})>.*$", "", source, flags=re.MULTILINE)
    head = "".join(f"#include <{header}>\n" for header in sorted(HEADERS)) + PRELUDE_TEXT
    parameters = ", ".join(f"{ctype} a{k}" for k, ctype in enumerate(types))
    called = f"{name}({', '.join(f'a{k}' for k in range(len(types)))}), passagent_done()"
    visible = '__attribute__((visibility("default")))'
    call = f'extern "C" {visible} int passagent_entry({parameters}) {{ return {called}; }}\n'
    entry = ctypes.CDLL(str(_built(f'{head}\n#line 1 "{name}.cpp"\n{source}\n{call}', name))).passagent_entry
    entry.argtypes = [passed_as(ctype) for ctype in types]
    return entry  # type: ignore[no-any-return]


def passed_as(ctype: str) -> Any:
    """Return the type of ctypes that an argument of a C type is passed as."""
    return next((kind for word, kind in SCALARS.values() if word == ctype), ctypes.c_void_p)


def _built(text: str, name: str) -> Path:
    """The shared object of a program, kept in the user's cache. Raises RuntimeError."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise RuntimeError(f"{name}: no {compiler} found; install g++ or set CXX to it")
    key = hashlib.sha256("\0".join([text, compiler, *FLAGS, processor()]).encode()).hexdigest()[:32]
    target = cache_dir() / "standalone" / f"{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as directory:
            file, library = Path(directory) / f"{name}.cpp", Path(directory) / "kernel.so"
            file.write_text(text)
            command = [compiler, *FLAGS, "-shared", str(file), "-o", str(library), *LIBRARIES]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{name} does not compile:\n{done.stderr}")
            os.replace(library, target)
    return target
