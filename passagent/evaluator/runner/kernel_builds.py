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
import os
import re
import shutil
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from passagent.errors import InfrastructureError, MachineFault
from passagent.evaluator.runner.build_requests import (
    BuildRequest,
    CppBuild,
    CudaBuild,
    LauncherBuild,
    ModuleBuild,
    PtxBuild,
)
from passagent.kernels import build, build_cuda, launch, toolchain
from passagent.kernels.source_errors import KernelBuildError, KernelRefused
from passagent.sandbox import tools
from passagent.sandbox.tools import Access
from passagent.system import faults

MAX_OBJECT = 11 << 20
"""Bytes that fit into one message."""
_OPTION = re.compile(
    r"-lineinfo|-suppress-debug-info|-g|-v|--fmad=false|--opt-level=[0-4]|--regAllocOptLevel=[0-9]"
    r"|--gpu-name=sm_\d{2,3}[af]?"
)
_TYPE = re.compile(r"\*?k?[a-z]{1,4}\d{1,3}|constexpr|nvTmaDesc|tensordesc<\w+\[[\d, ]+\](,[\w=, ]+)?>")


def answer(request: BuildRequest) -> dict[str, Any]:
    """The reply to a worker's request: `object` (base64), or `refused`, or `failed`.

    Raises InfrastructureError for a fault of this machine, PassagentError for a compiler that is not here,
    ValueError for a launcher of no types.
    """
    try:
        with faults.named("building a kernel"):
            return _object(_built(request))
    except KernelRefused as error:
        return {"refused": {"rule": error.rule, "line": error.line, "message": str(error)}}
    except KernelBuildError as error:
        if faults.speaks_of_places(str(error)):  # a source may say so, too
            with faults.named("building a kernel"):
                faults.check_places()
        return {"failed": str(error)}


def _built(request: BuildRequest) -> bytes:
    match request:
        case CppBuild():
            return _cpp(request)
        case CudaBuild():
            signature = build.Signature(tuple(request.types))
            return build_cuda.build(request.source, request.name, signature, request.arch).read_bytes()
        case PtxBuild():
            return _ptxas(request)
        case LauncherBuild():
            return _launcher(request)
        case ModuleBuild(kind="launch"):
            return launch.build().read_bytes()
        case _:
            return _cuda_utils()


def prepare() -> None:
    """Import and make ahead what the first kernel on a GPU asks for."""
    for step in (launch.build, _cuda_utils, _tools):
        with suppress(Exception):  # the kernel's own build will tell
            step()


def prepare_cpp() -> None:
    """Make what every C++ kernel includes. Raises MachineFault: no text of a candidate's is in it."""
    try:
        build.prepare()
    except KernelBuildError as error:
        faults.check_places()
        why = " ".join(str(error).split())[:300]
        raise MachineFault(f"C++ kernels cannot be built on this machine: {why}") from error


def _cpp(request: CppBuild) -> bytes:
    prepare_cpp()
    return build.build(request.source, request.name, build.Signature(tuple(request.types))).read_bytes()


def _ptxas(request: PtxBuild) -> bytes:
    from triton.backends.nvidia import compiler

    ptx, options = request.ptx, request.options
    strange = next((option for option in options if not _OPTION.fullmatch(option)), None)
    if strange is not None:
        raise KernelBuildError(f"ptxas: the option {strange[:80]!r} is not among those that a kernel may set")
    architecture = re.search(r"sm_(\d+)", " ".join(options))
    if architecture is None:
        raise ValueError("ptxas without an architecture")
    tool = compiler.get_ptxas(int(architecture[1])).path

    def compile_ptx(scratch: Path) -> Path:
        (scratch / "kernel.ptx").write_bytes(ptx.encode())
        toolchain.run([tool, *options, "kernel.ptx", "-o", "kernel.cubin"], "the kernel's PTX", scratch)
        return scratch / "kernel.cubin"

    return toolchain.built("ptx", ".cubin", [ptx, *options, _version(tool)], compile_ptx).read_bytes()


def _tools() -> None:
    from triton import knobs

    for tool in (knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell):
        with suppress(RuntimeError):  # not in every package
            _version(tool.path)


def _launcher(request: LauncherBuild) -> bytes:
    from triton.backends.nvidia import driver

    signature = [_types(item) for item in request.signature]
    descriptors: list[Any] | None = [{} if item else None for item in request.descriptors] or None
    try:
        source = driver.make_launcher({}, dict(enumerate(signature)), descriptors)
    except (LookupError, AttributeError, AssertionError, ValueError) as error:
        raise KernelBuildError(f"a launcher for {signature!r:.200} cannot be made: {error}") from error
    return _triton_module(driver, "__triton_launcher", source)


def _cuda_utils() -> bytes:
    from triton.backends.nvidia import driver

    return _triton_module(driver, "cuda_utils", Path(driver.dirname, "driver.c").read_text())


def _triton_module(driver: ModuleType, name: str, source: str) -> bytes:
    """A C extension of Triton's own, built as Triton builds it."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise InfrastructureError("Triton's modules need a C compiler; install gcc or set CC")
    library_dirs = driver.library_dirs()
    include_dirs = [*driver.include_dirs, sysconfig.get_paths("posix_prefix")["include"]]

    def compile_c(scratch: Path) -> Path:
        (scratch / f"{name}.c").write_text(source, "utf-8")
        command = [compiler, f"{name}.c", "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", f"{name}.so"]
        command += [f"-l:{library}" if ".so" in library else f"-l{library}" for library in driver.libraries]
        command += [*(f"-L{place}" for place in library_dirs), *(f"-I{place}" for place in include_dirs)]
        read = [Path(place) for place in (*library_dirs, *include_dirs)]
        try:
            toolchain.run(command, name, scratch, access=Access(read), headers=include_dirs)
        except KernelBuildError as error:
            message = f"Triton's {name} does not compile; is a C compiler set up?"
            raise InfrastructureError(f"{message} {error}") from error
        return scratch / f"{name}.so"

    parts = [source, str(sysconfig.get_config_var("EXT_SUFFIX")), *library_dirs]
    return toolchain.built("launcher", ".so", parts, compile_c).read_bytes()


def _types(item: Any) -> Any:
    """A checked part of a kernel's signature: Triton's word for a type, or a tuple of such."""
    if isinstance(item, list):
        return tuple(_types(part) for part in item)
    if not isinstance(item, str) or not _TYPE.fullmatch(item):
        raise ValueError(f"{item!r:.80} is no type of a kernel's argument")
    return item


@functools.cache
def _version(tool: str) -> str:
    return tools.ask(tool, "--version").output


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_OBJECT:
        raise KernelBuildError(f"a compiled kernel of {len(data) >> 20} MB is too large")
    return {"object": base64.b64encode(data).decode()}
