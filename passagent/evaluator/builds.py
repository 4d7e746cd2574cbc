"""The referee's side of building kernels: a sandboxed worker runs no compiler, it asks for what it needs.

What is compiled is a candidate's (C++, CUDA, PTX), ours (launch.c) or Triton's own (its launchers, its driver
module). Of a request only sources and a few checked words count: no path and no free option of a worker's is
used, and of Triton's own C code the worker sends only from which types it is made; the code is generated
here. What comes out is never loaded here. It is kept by content, shared over candidates, and handed back as
bytes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from passagent import faults
from passagent.cache import cache_dir
from passagent.errors import InfrastructureError, MachineFault
from passagent.kernels import build, build_cuda, launch, toolchain
from passagent.kernels.errors import KernelBuildError, KernelRefused

MAX_OBJECT = 11 << 20
"""Bytes that fit into one message."""
_OPTION = re.compile(
    r"-lineinfo|-suppress-debug-info|-g|-v|--fmad=false|--opt-level=[0-4]|--regAllocOptLevel=[0-9]"
    r"|--gpu-name=sm_\d{2,3}[af]?"
)
_TYPE = re.compile(r"\*?k?[a-z]{1,4}\d{1,3}|constexpr|nvTmaDesc|tensordesc<\w+\[[\d, ]+\](,[\w=, ]+)?>")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a worker's request: `object` (base64), or `refused`, or `failed`.

    Raises InfrastructureError for a fault of this machine, PassagentError for a compiler that is not here;
    KeyError, TypeError or ValueError for a request that makes no sense.
    """
    builders: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "cpp": _cpp,
        "cuda": _cuda,
        "launch": _launch,
        "ptxas": _ptxas,
        "launcher": _launcher,
        "cuda_utils": _cuda_utils,
    }
    try:
        with faults.named("building a kernel"):
            return builders[request["kind"]](request)
    except KernelRefused as error:
        return {"refused": {"rule": error.rule, "line": error.line, "message": str(error)}}
    except KernelBuildError as error:
        if faults.speaks_of_places(str(error)):  # a source may say so, too
            with faults.named("building a kernel"):
                faults.check_places()
        return {"failed": str(error)}


def prepare() -> None:
    """Import and make ahead what the first kernel on a GPU asks for."""
    for step in (_launch, _cuda_utils, _tools):
        with suppress(Exception):  # the kernel's own build will tell
            step({})


def _cpp(request: dict[str, Any]) -> dict[str, Any]:
    try:
        build.prepare()
    except KernelBuildError as error:  # no text of the candidate's is in it
        faults.check_places()
        why = " ".join(str(error).split())[:300]
        raise MachineFault(f"C++ kernels cannot be built on this machine: {why}") from error
    return _object(build.build(*_kernel(request)).read_bytes())


def _cuda(request: dict[str, Any]) -> dict[str, Any]:
    source, name, signature = _kernel(request)
    return _object(build_cuda.build(source, name, signature, str(request["arch"])).read_bytes())


def _launch(request: dict[str, Any]) -> dict[str, Any]:
    return _object(launch.build().read_bytes())


def _kernel(request: dict[str, Any]) -> tuple[str, str, build.Signature]:
    types = tuple(str(ctype) for ctype in request["types"])
    return str(request["source"]), str(request["name"]), build.Signature(types)


def _ptxas(request: dict[str, Any]) -> dict[str, Any]:
    from triton.backends.nvidia import compiler

    ptx, options = str(request["ptx"]), [str(option) for option in request["options"]]
    strange = next((option for option in options if not _OPTION.fullmatch(option)), None)
    if strange is not None:
        raise KernelBuildError(f"ptxas: the option {strange[:80]!r} is not among those that a kernel may set")
    architecture = re.search(r"sm_(\d+)", " ".join(options))
    if architecture is None:
        raise ValueError("ptxas without an architecture")
    tool = compiler.get_ptxas(int(architecture[1])).path

    def compile_ptx(scratch: Path) -> Path:
        (scratch / "kernel.ptx").write_text(ptx)
        toolchain.run([tool, *options, "kernel.ptx", "-o", "kernel.cubin"], "the kernel's PTX", scratch)
        return scratch / "kernel.cubin"

    return _object(_cached("ptx", ".cubin", [ptx, *options, _version(tool)], compile_ptx))


def _tools(_: dict[str, Any]) -> None:
    from triton import knobs

    for tool in (knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell):
        with suppress(RuntimeError):  # not in every package
            _version(tool.path)


def _launcher(request: dict[str, Any]) -> dict[str, Any]:
    from triton.backends.nvidia import driver

    signature = [_types(item) for item in request["signature"]]
    descriptors: list[Any] | None = [{} if item else None for item in request["descriptors"]] or None
    try:
        source = driver.make_launcher({}, dict(enumerate(signature)), descriptors)
    except (LookupError, AttributeError, AssertionError, ValueError) as error:
        raise KernelBuildError(f"a launcher for {signature!r:.200} cannot be made: {error}") from error
    return _object(_triton_module(driver, "__triton_launcher", source))


def _cuda_utils(request: dict[str, Any]) -> dict[str, Any]:
    from triton.backends.nvidia import driver

    return _object(_triton_module(driver, "cuda_utils", Path(driver.dirname, "driver.c").read_text()))


def _triton_module(driver: ModuleType, name: str, source: str) -> bytes:
    """A C extension of Triton's own, built as Triton builds it."""
    from triton.runtime.build import _build

    def compile_c(scratch: Path) -> Path:
        file = scratch / f"{name}.c"
        file.write_text(source)
        arguments = [
            name,
            str(file),
            str(scratch),
            driver.library_dirs(),
            driver.include_dirs,
            driver.libraries,
            [],
        ]
        try:
            return Path(_build(*arguments))
        except subprocess.CalledProcessError as error:
            raise InfrastructureError(f"Triton's {name} does not compile; is a C compiler set up?") from error

    parts = [source, str(sysconfig.get_config_var("EXT_SUFFIX")), *driver.library_dirs()]
    return _cached("launcher", ".so", parts, compile_c)


def _types(item: Any) -> Any:
    """A checked part of a kernel's signature: Triton's word for a type, or a tuple of such."""
    if isinstance(item, list):
        return tuple(_types(part) for part in item)
    if not isinstance(item, str) or not _TYPE.fullmatch(item):
        raise ValueError(f"{item!r:.80} is no type of a kernel's argument")
    return item


def _cached(place: str, suffix: str, parts: list[str], make: Callable[[Path], Path]) -> bytes:
    """What `make` leaves for the content `parts`, kept in the cache. Two that make the same do no harm."""
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    target = cache_dir() / place / f"{key}{suffix}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            os.replace(make(Path(scratch)), target)
    return target.read_bytes()


@functools.cache
def _version(tool: str) -> str:
    return subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_OBJECT:
        raise KernelBuildError(f"a compiled kernel of {len(data) >> 20} MB is too large")
    return {"object": base64.b64encode(data).decode()}
