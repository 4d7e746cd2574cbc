"""Compile CUDA kernels with NVRTC, cached by content. Runs on the trusted side: a candidate only asks for it.

What comes out is the kernel's machine code for a device and what its parameters are. The author's code is
device code only; what it can do is read from the PTX and the machine code that the compiler made of it: no
memory that outlives a launch, no calls of others or through pointers, no clocks.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from passagent.errors import PassagentError
from passagent.kernels import cuda_source, elf, lexer, objects, toolchain
from passagent.kernels.build import Signature
from passagent.kernels.ptx import variables, without_comments, written
from passagent.kernels.source_errors import KernelBuildError, KernelRefused, line_of_word
from passagent.sandbox.environment import package_version

FLAGS = ["-std=c++17", "-fmad=false", "-default-device"]
_NVRTC = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc-cu13")
_HERE = Path(__file__).parent
_CLOCK = re.compile(r"%(clock\w*|globaltimer\w*|pm\d+\w*)")
_LAMBDA = re.compile(r"\][ \t]*(?:__host__[ \t]+)?__device__(?=\s*[({])")
"""The specifier of a lambda, which is for the device anyway; NVRTC allows no such word there."""
_LAUNCH = re.compile(r"device-side kernel launch could not be processed.*")
_NO_LAUNCH = "a source launches nothing; leave functions of the host out, and launch in Python"
_POINTER_CALL = re.compile(r"\.call(?:prototype|targets)\b")
"""PTX's words for a call whose function is known only when it runs."""
_ASSERT = "__assertfail"
"""The function that ends a kernel where a condition of `assert` or `tl.device_assert` does not hold."""
_ASSERTED = re.compile(
    rf"\{{(?:\s*(?:\.param|\.reg|mov|cvta|st\.param)\b[^;{{}}]*;)*\s*call[\w.]*\s+{_ASSERT}\b[^;{{}}]*;\s*\}}"
)
"""Its call, which reads text only."""
_CONSTANT_ADDRESS = re.compile(r"\bcvta\.const\b")


def check_source(written: str) -> lexer.Source:
    """The source as it is compiled. Raises KernelRefused for what it may not hold, by its text."""
    source = lexer.read(_LAMBDA.sub("]", lexer.read(written).text))
    lexer.check(source)
    return source


def build(written: str, name: str, signature: Signature, arch: str) -> Path:
    """The file of kernel `name` for `signature` and devices of `arch`, such as sm_90 (see unpack); cached.

    Raises KernelRefused, KernelBuildError (with the compiler's first errors, lines of the source `written`),
    and PassagentError where NVRTC or its headers are not installed.
    """
    source = check_source(written)
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise KernelBuildError(f"cuda_kernel: {arch!r} is not a device's architecture, such as sm_90")
    instance = cuda_source.instantiate(source, name, signature.types)
    options = [f"--gpu-architecture={arch}", *FLAGS, *(f"-I{path}" for path in _include_path())]
    prelude = "\n".join((_HERE / name).read_text() for name in ("prelude.cuh", "std.cuh"))
    text = f'{prelude}\n#line 1 "{_short(name)}.cu"\n{source.text}\n'
    parts = [text, instance.expression, *options, _compiler_version(), toolchain.rules()]
    compile_cuda = functools.partial(_compile, text, source.text, _short(name), instance, options)
    return toolchain.built("cuda", ".kernel", parts, compile_cuda)


def _compile(
    text: str,
    source: str,
    name: str,
    instance: cuda_source.Instance,
    options: list[str],
    scratch: Path,
) -> Path:
    (scratch / "kernel.cu").write_bytes(text.encode())
    command = [str(_HERE / "nvrtc.py"), "kernel.cu", instance.expression, *options]
    headers = [Path(option[2:]) for option in options if option.startswith("-I")]
    absent = "cuda_kernel: NVIDIA's compiler NVRTC does not start; pip install nvidia-cuda-nvrtc"
    try:
        toolchain.run_python(command, name, scratch, ["cuda/bindings", "nvidia"], absent, headers)
    except KernelBuildError as error:
        text = _LAUNCH.sub(f"{_NO_LAUNCH}: kernel[grid, block](...)", str(error))
        raise KernelBuildError(_without_paths(text, options)) from None
    cubin = (scratch / "kernel.cubin").read_bytes()
    check_built((scratch / "kernel.ptx").read_text(), cubin, source)
    entry = (scratch / "kernel.name").read_text()
    (scratch / "kernel").write_bytes(pack(cubin, entry, instance.types))
    return scratch / "kernel"


def pack(cubin: bytes, entry: str, types: list[str], **facts: Any) -> bytes:
    """A built kernel as one file: symbol, parameters' C types and more in a line of JSON, then the code."""
    return json.dumps({"entry": entry, "types": types, **facts}).encode() + b"\n" + cubin


def unpack(built: bytes) -> tuple[bytes, str, tuple[str, ...]]:
    """The cubin, the symbol and its parameters' C types (of launch.TYPES) of a built kernel."""
    head, _, cubin = built.partition(b"\n")
    facts = json.loads(head)
    return cubin, str(facts["entry"]), tuple(str(ctype) for ctype in facts["types"])


def check_built(ptx: str, cubin: bytes, source: str) -> None:
    """Raise KernelRefused for what compiled device code may not do, with the line of a name in `source`."""
    ptx = _ASSERTED.sub(" ", without_comments(ptx))
    if _POINTER_CALL.search(ptx):
        message = "calls through a pointer; use a template parameter, a lambda or a switch"
        raise KernelRefused("cuda_pointer_call", line_of_word(source, "virtual"), message)
    parsed = elf.read(cubin)
    imports = [s.name for s in parsed.symbols if s.section == elf.UNDEFINED and s.kind == elf.FUNCTION]
    imports = [name for name in imports if name not in ("", _ASSERT)]
    if imports:
        word = imports[0].removeprefix("v").removeprefix("__")
        message = f"calls {imports[0]}; a kernel may call its own functions and CUDA's device functions only"
        raise KernelRefused("cuda_import", line_of_word(source, word), message)
    homes = {i for i, part in enumerate(parsed.sections) if part.name.startswith(".nv.global")}
    held = {s.name for s in parsed.symbols if s.section in homes and s.kind != elf.SECTION_SYMBOL}
    persistent = [*written(ptx), *sorted(held - variables(ptx))]
    if persistent:
        variable = objects.demangled(persistent[:1])[0]
        message = f"`{variable}` keeps its value from launch to launch; keep values in locals, __shared__ "
        line = line_of_word(source, re.split(r"\W+", variable)[-1])
        raise KernelRefused(
            "cuda_state", line, f"{message}or tensors, and tables in __constant__ with their values"
        )
    if _CONSTANT_ADDRESS.search(ptx):
        message = "takes the address of a __constant__ table; index the table itself, where it is declared"
        raise KernelRefused("cuda_state", line_of_word(source, "__constant__"), message)
    clock = _CLOCK.search(ptx)
    if clock is not None:
        message = f"reads the clock ({clock.group()}); a kernel computes, it has no use for it"
        raise KernelRefused("cuda_clock", line_of_word(source, r"\w*(?:clock|globaltimer)\w*"), message)


def _include_path() -> list[Path]:
    """Where cuda_fp16.h is: beside NVIDIA's runtime, with Triton, or in a toolkit."""
    roots = []
    for package, inner in (("nvidia", "*/include"), ("triton", "backends/nvidia/include")):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            roots += sorted(Path(place).glob(inner))
    roots += [Path(home) / "include" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    with_fp16 = [root for root in roots if (root / "cuda_fp16.h").exists()]
    whole = [
        root for root in with_fp16 if (root / "crt" / "mma.h").exists()
    ]  # Triton brings a part of a toolkit
    if with_fp16:
        return (whole or with_fp16)[:1]
    raise PassagentError("cuda_kernel: no cuda_fp16.h found; pip install passagent[cuda], or set CUDA_HOME")


def _compiler_version() -> str:
    """The version of NVRTC, by those of its binding and of the packages that bring its library."""
    installed = {name: package_version(name) or "" for name in ("cuda-bindings", *_NVRTC)}
    if not installed["cuda-bindings"]:
        message = "cuda_kernel: NVIDIA's compiler binding (cuda-bindings) is not installed"
        raise PassagentError(f"{message}; pip install passagent[cuda]")
    return " ".join(f"{name} {version}" for name, version in installed.items())


def _without_paths(message: str, options: list[str]) -> str:
    for option in options:
        if option.startswith("-I"):
            message = message.replace(f"{option[2:]}/", "")
    return message


def _short(name: str) -> str:
    return name.partition("<")[0]
