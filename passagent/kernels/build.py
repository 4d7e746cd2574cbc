"""Compile C++ kernels, cached by content. Runs on the trusted side: a candidate only asks for it.

A source may include a few headers, may hold no assembly, and what it links to is checked in the built
object itself: a shared object that imports anything but math, memory and OpenMP functions is refused.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from passagent.errors import PassagentError

COMPILE_TIMEOUT_S = 60.0
FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
FLAGS += ["-fopenmp", "-fPIC"]
LIBRARIES = ["-lmvec", "-lm"] if os.uname().machine == "x86_64" else ["-lm"]
PRELUDE = Path(__file__).with_name("prelude.h")

_HEADERS = {"algorithm", "array", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstring", "limits"}
_HEADERS |= {
    "functional",
    "numeric",
    "tuple",
    "type_traits",
    "utility",
    "vector",
    "omp.h",
    "math.h",
    "stdint.h",
}
_HEADERS |= {"immintrin.h", "arm_neon.h", "float.h", "string.h"}
_IMPORTS = re.compile(
    r"GOMP_\w+|omp_get_\w+|_ZGV\w+|mem(cpy|set|move|cmp|chr)|_ITM_\w+|__gmon_start__|__cxa_finalize"
    r"|__stack_chk_fail|_Zn[wa]m\w*|_Zd[la]Pv\w*|malloc|free|_ZSt\d+__throw_\w+|_Unwind_Resume"
    r"|__cxa_(begin_catch|end_catch|rethrow|throw_bad_array_new_length)|__gxx_personality_v0|_ZSt9terminatev"
    r"|a?(sin|cos|tan)h?f?|atan2f?|exp(m1|2|10)?f?|log(1p|2|10|b)?f?|powf?|sqrtf?|cbrtf?|erfc?f?|[tl]gammaf?"
    r"|floorf?|ceilf?|truncf?|roundf?|nearbyintf?|rintf?|l?lrintf?|l?lroundf?|fmodf?|remainderf?|fmaf?|fm(in|ax)f?"
    r"|fdimf?|hypotf?|ldexpf?|frexpf?|modff?|copysignf?|nextafterf?|scalbn?f?|__\w*_finite|sincosf?|fabsf?"
)


class KernelBuildError(PassagentError):
    """The C++ source of a kernel does not compile; the message is the compiler's."""


class KernelRefused(PassagentError):
    """The C++ source of a kernel asks for more than a kernel may: `rule` and `line` say what and where."""

    def __init__(self, rule: str, line: int, message: str) -> None:
        super().__init__(message)
        self.rule, self.line = rule, line


@dataclass(frozen=True)
class Signature:
    """C types of a call's arguments, in order, such as ("float*", "int64_t")."""

    types: tuple[str, ...]


def cache_dir() -> Path:
    """`$PASSAGENT_CACHE`, else `$XDG_CACHE_HOME/passagent`, else `~/.cache/passagent`."""
    root = os.environ.get("PASSAGENT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(root) if root else (Path(base) if base else Path.home() / ".cache") / "passagent"


def check_source(source: str) -> None:
    """Raise KernelRefused for a header, an assembly statement or a token that a kernel has no use for."""
    text = source.replace("\\\n", "  ")
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    for number, line in enumerate(text.splitlines(), 1):
        include = re.match(r"\s*#\s*(include|import)\b\s*(.*)", line)
        if include and include.group(2).strip().strip('<>"') not in _HEADERS:
            allowed = ", ".join(sorted(_HEADERS))
            message = f"{include.group(2)} is not among the headers a kernel may include: {allowed}"
            raise KernelRefused("cpp_include", number, message)
        if re.search(r"\b(asm|__asm|__asm__)\b", line):
            raise KernelRefused(
                "cpp_asm", number, "inline assembly; write C++ and let the compiler vectorise it"
            )
        if "##" in line or re.search(r"#\s*pragma\s+(?!omp\b|GCC\b|once\b|unroll\b)", line):
            raise KernelRefused(
                "cpp_preprocessor", number, "token pasting and pragmas other than omp and GCC"
            )
        if re.search(r"\b(thread_local|__thread)\b|__attribute__\s*\(\s*\(\s*(con|de)structor", line):
            raise KernelRefused("cpp_state", number, "state that outlives a call; keep everything in locals")


def build(source: str, name: str, signature: Signature) -> Path:
    """The shared object of kernel `name` for `signature`, built unless it is cached.

    Raises KernelRefused, KernelBuildError (with the compiler's first errors, lines of `source`).
    """
    check_source(source)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise KernelBuildError(f"cpp_kernel: {name!r} is not the name of a C++ function")
    text = _program(source, name, signature)
    key = hashlib.sha256("\0".join([text, PRELUDE.read_text(), *FLAGS, _compiler_id()]).encode()).hexdigest()
    directory = cache_dir() / "cpp"
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{key[:32]}.so"
    with open(directory / f"{key[:32]}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(text, name, target)
    return target


def _program(source: str, name: str, signature: Signature) -> str:
    parameters = ", ".join(f"{ctype} a{i}" for i, ctype in enumerate(signature.types))
    arguments = ", ".join(f"a{i}" for i in range(len(signature.types)))
    return (
        f'#include "{PRELUDE}"\n#line 1 "{name}.cpp"\n{source}\n#line 1 "call of {name}"\n'
        f'extern "C" void passagent_entry({parameters}) {{ {name}({arguments}); }}\n'
    )


def _compile(text: str, name: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        cpp, so = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.so"
        cpp.write_text(text)
        command = [
            _compiler(),
            *FLAGS,
            "-shared",
            "-fmax-errors=3",
            "-Wl,-z,defs",
            str(cpp),
            "-o",
            str(so),
            *LIBRARIES,
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False, cwd=scratch
            )
        except subprocess.TimeoutExpired as error:
            raise KernelBuildError(f"{name}: compiling took more than {COMPILE_TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            message = re.sub(r"\S*/kernel\.cpp", "kernel.cpp", done.stderr.strip())
            raise KernelBuildError(f"{name} does not compile:\n{message[:3000]}")
        _check_imports(so)
        os.replace(so, target)


def _check_imports(so: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(so)], capture_output=True, text=True, check=True
    )
    for line in listing.stdout.splitlines():
        symbol = line.split()[-1].split("@")[0]
        if not _IMPORTS.fullmatch(symbol):
            message = f"calls {symbol}; a kernel may call math, memory and OpenMP functions only"
            raise KernelRefused("cpp_import", 1, message)


@functools.cache
def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return name
    raise PassagentError("no C++ compiler found; install g++ (Debian: apt-get install g++) or set CXX")


@functools.cache
def _compiler_id() -> str:
    version = subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    flags = ""
    if os.path.exists("/proc/cpuinfo"):
        cpuinfo = Path("/proc/cpuinfo").read_text()
        flags = next((line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))), "")
    return version.splitlines()[0] + flags
