"""Compile one CUDA source with NVRTC, in a process of its own: a compiler that hangs takes nobody along.

    python nvrtc.py KERNEL.cu NAME_EXPRESSION OPTION...

Run as a script, it imports nothing of passagent. Leaves kernel.cubin, kernel.ptx and kernel.name (the symbol
of NAME_EXPRESSION) in the working directory; the compiler's messages go to standard error.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc

STUBS = (
    "algorithm", "array", "assert.h", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio",
    "cstdlib", "cstring", "cuda.h", "cuda_runtime.h", "device_launch_parameters.h", "float.h", "iostream",
    "limits", "limits.h", "math.h", "stddef.h", "stdexcept", "stdint.h", "stdio.h", "stdlib.h", "string.h",
    "type_traits", "utility", "vector",
)  # fmt: skip
"""Headers of the host: what a kernel may use of them is built in or in the prelude. They are empty."""


def checked(result: tuple[Any, ...]) -> Any:
    """The values of a call to NVRTC; RuntimeError if it failed."""
    code, *values = result
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {code.name}")
    return values[0] if len(values) == 1 else values


def text(program: Any, size: Callable[..., Any], get: Callable[..., Any]) -> bytes:
    """Read the text that NVRTC writes into a buffer of its own size."""
    buffer = b" " * checked(size(program))
    checked(get(program, buffer))
    return buffer


def main(file: str, name: str, *options: str) -> int:
    """Compile `file` and write what came out; exit code 1 if it does not compile.

    A file `ready` says that the compiler itself was there.
    """
    checked(nvrtc.nvrtcVersion())
    Path("ready").touch()
    names = [stub.encode() for stub in STUBS]
    empty = [b"#pragma once\n"] * len(names)
    source = Path(file).read_bytes()
    program = checked(nvrtc.nvrtcCreateProgram(source, file.encode(), len(names), empty, names))
    checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    sys.stderr.write(log.rstrip(b"\0 \n").decode("utf-8", "replace"))
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return 1
    Path("kernel.cubin").write_bytes(text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN))
    Path("kernel.ptx").write_bytes(text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0"))
    Path("kernel.name").write_bytes(checked(nvrtc.nvrtcGetLoweredName(program, name.encode())))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
