"""`cpp_kernel` and `triton_kernel` with nothing beneath but GCC, ctypes and Triton's own launch.

What `passagent best --standalone` writes beside a pass is made of this file: it takes the same sources and
plans and computes the same. It shuts no compiler in and checks no source, and a launch takes some
microseconds more.
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

from passagent.kernels.cpp import CTYPES, SCALARS
from passagent.kernels.layout import Like, Order, laid, orders, row_major, seen, strides
from passagent.kernels.toolchain import FLAGS, HEADERS, LIBRARIES, NOTHING, PRELUDE_TEXT, processor
from passagent.sandbox.cache import cache_dir


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
    entries: dict[tuple[str, ...], Any] = {}

    def run(*args: Any) -> None:
        types = tuple(_ctype(name, argument) for argument in args)
        if types not in entries:
            entries[types] = _entry(source, name, types)
        if entries[types](*(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args)):
            raise IndexError(f"index out of range in self (kernel {name})")

    if plan is None:
        return run
    parameters = list(inspect.signature(plan).parameters) if order else []

    def launch(inputs: Sequence[Any], grid: Any, outputs: dict[str, Any], numbers: dict[str, Any]) -> None:
        run(*inputs, *outputs.values(), *numbers.values())

    return _planned(lambda *args: (1, *plan(*args)), orders(name, order, parameters), launch)


def triton_kernel(
    plan: Callable[..., Any], order: Mapping[str, Iterable[int]] | None = None, **options: Any
) -> Callable[[Any], Callable[..., Any]]:
    """Make a `@triton.jit` kernel a function that allocates its outputs and launches it.

    The plan gets shapes, dtypes and numbers. It returns the grid, the outputs by name, and the other
    parameters and options of Triton by name; `options` hold for every plan. `order` says how a parameter
    lies in memory: the order of its dimensions, outermost first.
    """

    def decorate(kernel: Any) -> Callable[..., Any]:
        parameters = list(inspect.signature(kernel.fn).parameters)

        def launch(
            inputs: Sequence[Any], grid: Any, outputs: dict[str, Any], numbers: dict[str, Any]
        ) -> None:
            sizes = grid if isinstance(grid, tuple) else (grid,)
            if 0 not in sizes:
                named = dict(zip(parameters, inputs, strict=False))
                # keeps tl.device_assert, adds none; Triton's interpreter has no such option
                asserts = {"debug": True, "sanitize_overflow": False} if hasattr(kernel, "debug") else {}
                kernel[sizes](**named, **outputs, **asserts, **options | numbers)

        return _planned(plan, orders(kernel.fn.__name__, order, parameters), launch)

    return decorate


def _planned(
    plan: Callable[..., Any], lying: Sequence[Order], launch: Callable[..., None]
) -> Callable[..., Any]:
    """A function that allocates what the plan says, launches and returns it.

    The plan is asked once for each combination of shapes, dtypes and numbers. Tensors that do not lie in
    their order are copied; then the outputs are contiguous.
    """
    plans: dict[Any, Any] = {}

    def call(*args: Any) -> Any:
        all_orders = (*lying, *[()] * len(args))[: len(args)]
        inputs = tuple(map(laid, args, all_orders))
        seen_inputs = tuple(map(seen, inputs, all_orders))
        key = seen_inputs, tuple(map(type, seen_inputs))
        if key not in plans:
            grid, outputs, numbers = plan(*seen_inputs)
            plans[key] = grid, {name: Like(*like) for name, like in outputs.items()}, numbers
        grid, outputs, numbers = plans[key]
        device = next((a.device for a in inputs if isinstance(a, torch.Tensor)), None)
        tensors = {}
        for name, like in outputs.items():
            steps = strides(like.shape, like.order)
            tensors[name] = torch.empty_strided(like.shape, steps, dtype=like.dtype, device=device)
        launch(inputs, grid, tensors, numbers)
        results = tuple(tensors.values())
        result = results[0] if len(results) == 1 else results or None
        return result if all(map(operator.is_, args, inputs)) else row_major(result)

    return call


def _ctype(name: str, argument: Any) -> str:
    """The C type that an argument arrives as."""
    if isinstance(argument, torch.Tensor) and argument.is_cpu and argument.dtype in CTYPES:
        return CTYPES[argument.dtype]
    if type(argument) in SCALARS:
        return SCALARS[type(argument)][0]
    what = (
        f"a {argument.dtype} tensor on {argument.device}" if isinstance(argument, torch.Tensor) else argument
    )
    raise TypeError(f"{name}: is given {what!r:.80}; it takes CPU tensors, ints, floats and bools")


def _entry(source: str, name: str, types: tuple[str, ...]) -> Any:
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
    entry.argtypes = [ctypes.c_void_p if ctype.endswith("*") else _scalar(ctype) for ctype in types]
    entry.restype = ctypes.c_int
    return entry


def _scalar(ctype: str) -> Any:
    return next(kind for word, kind in SCALARS.values() if word == ctype)


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
