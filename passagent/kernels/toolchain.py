"""The compilers behind the kernels: which one, its flags, its precompiled prelude, a run shut in."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from passagent.errors import PassagentError
from passagent.kernels.source_errors import KernelBuildError
from passagent.sandbox import tools
from passagent.sandbox.cache import cache_dir
from passagent.sandbox.limits import COMPILE, MESSAGE, PRECOMPILE, ToolLimits
from passagent.sandbox.tools import NO_ACCESS, Access

HEADERS = frozenset({
    "algorithm", "array", "assert.h", "atomic", "bit", "bitset", "cassert", "cctype", "cerrno", "cfloat",
    "cinttypes", "climits", "cmath", "compare", "complex", "concepts", "cstddef", "cstdint",
    "cstdio", "cstdlib", "cstring", "deque", "errno.h", "exception", "float.h", "forward_list",
    "functional", "initializer_list", "inttypes.h", "iosfwd", "iterator", "limits", "limits.h", "list",
    "map", "math.h", "memory", "new", "numbers", "numeric", "omp.h", "optional", "queue", "ranges", "ratio",
    "set", "source_location", "span", "sstream", "stack", "stdalign.h", "stdbool.h", "stddef.h",
    "stdexcept", "stdint.h", "stdio.h", "stdlib.h", "string", "string.h", "string_view", "tuple",
    "type_traits", "typeinfo", "unordered_map", "unordered_set", "utility", "valarray", "variant", "vector",
    "version",
} | ({
    "emmintrin.h", "immintrin.h", "mm_malloc.h", "nmmintrin.h", "pmmintrin.h", "smmintrin.h", "tmmintrin.h",
    "x86intrin.h", "xmmintrin.h",
} if os.uname().machine == "x86_64" else {"arm_neon.h"}))  # fmt: skip
"""Headers that every kernel sees, and may include."""
NOTHING = frozenset({
    "any", "barrier", "bits/stdc++.h", "chrono", "condition_variable", "ctime", "execution", "fstream",
    "future", "iomanip", "iostream", "latch", "mutex", "random", "semaphore", "shared_mutex", "stop_token",
    "thread", "time.h",
})  # fmt: skip
"""Headers that a kernel may include out of habit: to it they are empty."""
FLAGS = ["-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
FLAGS += ["-fopenmp", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-jump-tables"]
FLAGS += ["-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-DNDEBUG"]
FLAGS += ["-fwrapv"]  # integers overflow as eager's do
# Lines of a source; of DWARF 5 objdump mistakes the first function's file.
FLAGS += ["-g1", "-gdwarf-4"]
# The x87's registers outlive a call.
FLAGS += ["-fcf-protection=none", "-mlong-double-64"] if os.uname().machine == "x86_64" else []
CHECKED = [*FLAGS]
"""FLAGS, and calls through pointers by functions that look where they go (objects.BRANCHES)."""
if os.uname().machine == "x86_64":
    CHECKED += ["-fcf-protection=branch", "-mindirect-branch=thunk-extern", "-mindirect-branch-register"]
LIBRARIES = ["-lmvec", "-lm"] if os.uname().machine == "x86_64" else ["-lm"]
PRELUDE = Path(__file__).with_name("prelude.h")
PRELUDE_TEXT = PRELUDE.read_text().replace("#pragma once\n", "")


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock beside `target`, so that it is made once; makes its directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(place: str, suffix: str, parts: Sequence[str], make: Callable[[Path], Path]) -> Path:
    """The file of the cache for the content `parts`: what `make` leaves in a scratch directory, made once."""
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    target = cache_dir() / place / f"{key}{suffix}"
    if not target.exists():
        with locked(target), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            if not target.exists():
                os.replace(make(Path(scratch)), target)
    return target


def run(
    command: list[str],
    name: str,
    scratch: Path,
    limits: ToolLimits = COMPILE,
    access: Access = NO_ACCESS,
    headers: Collection[Path] = (),
) -> None:
    """Run a compiler in `scratch`, shut in (sandbox/tools.py).

    Raises KernelBuildError with its messages if it fails, in `name`'s words, as far as they are about the
    kernel's files or directories `headers` (see `shown`).
    """
    done = tools.run(command, scratch, limits, access)
    if done.timed_out:
        raise KernelBuildError(f"{name}: compiling took more than {limits.wall_s:.0f} s, or than is left")
    if done.code != 0:
        places = [f"{place}/" for place in headers]
        text = shown(done.errors.replace(f"{scratch}/", ""), places)
        raise KernelBuildError(f"{name} does not compile:\n{text or f'the compiler {done.why}'}")


_OUTPUT_PLACE = re.compile(r"(?:In file included from | +from )?(?P<file>[^\s:(][^:(]*)(?:\(\d+\)|:)")
_PROGRAMS = re.compile(r"(?:.*/)?(?:[\w.-]*-)?(?:ld(?:\.\w+)?|as|collect2|cc1(?:plus)?)")


def shown(text: str, headers: Collection[str]) -> str:
    """The lines of a compiler's messages that an author may see, cut to MESSAGE characters.

    A line that names a place is shown where the place is in the kernel (it has no directory) or in the
    compiler's directories `headers`, which end in a slash. What follows such a line without a place of its
    own (the line quoted, a mark beneath) is shown for the kernel only.
    """
    lines, is_own, is_known = [], True, True
    for line in text.splitlines():
        place = _OUTPUT_PLACE.match(line)
        if place is not None:
            file = place["file"]
            is_own = "/" not in file
            is_known = is_own or bool(_PROGRAMS.fullmatch(file)) or file.startswith(tuple(headers))
        if is_known and (is_own or place is not None or not line[:1].isspace()):
            lines.append(line)
    return "\n".join(lines).strip()[:MESSAGE]


def run_python(
    command: list[str],
    name: str,
    scratch: Path,
    packages: Collection[str],
    absent: str,
    headers: Collection[Path] = (),
) -> None:
    """Run a script of passagent's, which calls a compiler in Python `packages` (directories), as `run` does.

    Raises PassagentError that begins with `absent` where the script left no file `ready`: the compiler is not
    there.
    """
    entries = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    search = [e for e in dict.fromkeys(entries) if e and any((Path(e) / name).is_dir() for name in packages)]
    libraries = [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), os.environ.get("CUDA_HOME", "")]
    places = ["/usr", sys.prefix, sys.base_prefix, *search, *filter(None, libraries)]
    execute = [Path(place) for place in places if Path(place) not in (Path("/"), Path.home())]
    environment = {"PYTHONPATH": os.pathsep.join(search), "HOME": str(scratch)}
    access = Access([Path(command[0])], [*execute, *headers], environment)
    try:
        run([sys.executable, "-P", *command], name, scratch, access=access, headers=headers)
    except KernelBuildError as error:
        if (scratch / "ready").exists():
            raise
        raise PassagentError(f"{absent}: {str(error).splitlines()[-1]}") from None


@functools.cache
def header_directories() -> tuple[Path, ...]:
    """Where GCC looks for headers."""
    lines = tools.ask(compiler(), "-E", "-v", "-x", "c++", "/dev/null").errors.splitlines()
    return tuple(Path(line.strip()) for line in lines if line.startswith(" /"))


@functools.cache
def compiler() -> str:
    """The C++ compiler: `$CXX`, g++ or c++, which must be GCC's; PassagentError if there is none."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and shutil.which(name) and _version(name):
            if not shutil.which("objdump") or not shutil.which("c++filt"):
                raise PassagentError("no objdump found; install binutils (Debian: apt-get install binutils)")
            return name
    raise PassagentError("no GCC found; install g++ (Debian: apt-get install g++) or set CXX to it")


def _version(name: str) -> str:
    """The first line of a GCC's version; empty for another compiler."""
    text = tools.ask(name, "--version").output
    return text.splitlines()[0] if "Free Software Foundation" in text else ""


@functools.cache
def identity() -> str:
    """Compiler, flags and the processor's features: what a built kernel depends on beside its source."""
    return "\0".join([_version(compiler()), *CHECKED, processor()])


@functools.cache
def processor() -> str:
    """The processor's features, as Linux names them."""
    if not os.path.exists("/proc/cpuinfo"):
        return ""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@functools.cache
def rules() -> str:
    """A hash of this package's files: what was accepted under other rules is built and checked again."""
    digest = hashlib.sha256()
    for path in sorted(PRELUDE.parent.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def prelude() -> Path:
    """Write the header that every kernel includes first: all allowed headers, and prelude.h.

    Precompiled once for a compiler (seconds), after which a kernel of a few lines compiles in 0.1 s.
    """
    text = "".join(f"#include <{header}>\n" for header in sorted(HEADERS)) + PRELUDE_TEXT
    key = hashlib.sha256("\0".join([text, identity()]).encode()).hexdigest()[:16]
    header = cache_dir() / "cpp" / f"prelude-{key}.h"
    precompiled = header.with_suffix(".h.gch")
    if not precompiled.exists():
        with locked(header):
            if not precompiled.exists():
                header.write_text(text, "utf-8")
                built = header.with_suffix(".new.gch")
                command = [compiler(), *CHECKED, "-x", "c++-header", str(header), "-o", str(built)]
                run(command, "the prelude of C++ kernels", header.parent, PRECOMPILE)
                os.replace(built, precompiled)
    return header
