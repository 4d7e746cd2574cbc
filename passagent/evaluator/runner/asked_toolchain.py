"""The worker's side of building kernels: what would run a compiler asks the referee instead.

The kernels of passagent have a place for their builder, and Triton one for the C compiler of its
launchers. Triton starts ptxas itself; its compiler module is given a `subprocess` that asks.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from passagent.evaluator.runner.build_requests import SOURCE
from passagent.kernels import cpp, cuda, launch
from passagent.kernels.build import Signature
from passagent.kernels.source_errors import KernelBuildError, KernelRefused

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Sends a request for a build to the referee and returns its reply."""


def warm_up(cuda: bool) -> None:
    """In the fork server, once Triton is imported: learn what it starts programs or reads itself for.

    CUDA is not touched.
    """
    from triton import knobs
    from triton.backends.nvidia import driver
    from triton.runtime.build import platform_key
    from triton.runtime.cache import triton_key

    platform_key()
    for tool in ("ptxas", "ptxas_blackwell"):
        with contextlib.suppress(RuntimeError):  # not in every package; Triton says so when it needs it
            _version(getattr(knobs.nvidia, tool).path)
    if cuda:
        triton_key()  # half a second; on the CPU kernels run in the interpreter
        driver.libcuda_dirs()


def install(ask: Ask) -> None:
    """Have this process's C++, CUDA and Triton kernels built by whom `ask` asks.

    Raises RuntimeError if this version of Triton has no place for that.
    """
    folder = Path.cwd() / "built"

    def built(kind: str, **request: Any) -> Path:
        return _kept(folder, _object(ask({"kind": kind, **request})))

    def build_cpp(source: str, name: str, signature: Signature) -> Path:
        return built("cpp", source=source, name=name, types=list(signature.types))

    def build_cuda(source: str, name: str, signature: Signature, arch: str) -> Path:
        return built("cuda", source=source, name=name, types=list(signature.types), arch=arch)

    cpp._builder[0], cuda._builder[0] = build_cpp, build_cuda
    launch._builder[0] = functools.partial(built, "launch")
    if "triton" in sys.modules:
        _install_triton(ask)


def _install_triton(ask: Ask) -> None:
    import triton
    from triton import knobs
    from triton.backends.nvidia import compiler, driver

    if not hasattr(knobs.build, "impl") or getattr(compiler, "subprocess", None) is not subprocess:
        message = f"Triton {triton.__version__} has no place for a builder; use Triton 3.6 to 3.9"
        raise RuntimeError(message)
    signatures: dict[str, dict[str, Any]] = {}
    if hasattr(driver, "make_launcher"):  # from Triton 3.7 on one launcher serves all kernels
        driver.make_launcher = _remember(driver.make_launcher, signatures)

    def build_c(name: str, src: str, srcdir: str, *_: list[str]) -> str:
        request = {"kind": "cuda_utils"} if name == "cuda_utils" else signatures.get(Path(src).read_text())
        if request is None:
            raise RuntimeError(f"{name}: the evaluator does not build this module of Triton's")
        target = Path(srcdir) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        target.write_bytes(_object(ask(request)))
        return str(target)

    knobs.build.impl = build_c
    compiler.subprocess = _Subprocess(ask)  # type: ignore[assignment]


def _remember(
    make_launcher: Callable[[Any, dict[Any, Any], Any], str], signatures: dict[str, dict[str, Any]]
) -> Callable[[Any, dict[Any, Any], Any], str]:
    """make_launcher, with a note of which types each source was made from."""

    def remembering(constants: Any, signature: dict[Any, Any], tensordesc_meta: Any) -> str:
        source = make_launcher(constants, signature, tensordesc_meta)
        descriptors = [item is not None for item in tensordesc_meta or []]
        request = {"kind": "launcher", "signature": list(signature.values()), "descriptors": descriptors}
        signatures[source] = request
        return source

    return remembering


class _Subprocess:
    """Stands for the module `subprocess` in Triton's compiler: the one program it may run is ptxas."""

    CalledProcessError = subprocess.CalledProcessError

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def check_output(self, command: list[str]) -> bytes:
        """The answer to `ptxas --version`."""
        return _version(command[0])

    def run(self, command: list[str], check: bool, close_fds: bool, stderr: Any) -> None:
        """`ptxas OPTIONS... FILE.ptx -o FILE.o`, its messages to the file `stderr`."""
        *options, ptx, output, cubin = command[1:]
        text = " ".join(options)
        if output != "-o" or not ptx.endswith(".ptx"):
            raise RuntimeError(f"Triton calls ptxas in a way that the evaluator does not know: {text[:300]}")
        options = re.sub(r"(--opt-level) (?=\d)", r"\1=", text).split()
        try:
            source = Path(ptx).read_text()
            if len(source) > SOURCE:
                raise KernelBuildError(f"{len(source) >> 20} MB of PTX are too much; make the kernel smaller")
            object_ = _object(self._ask({"kind": "ptxas", "ptx": source, "options": options}))
        except KernelBuildError as error:
            Path(stderr.name).write_text(str(error))
            raise subprocess.CalledProcessError(1, command) from error
        Path(cubin).write_bytes(object_)


def _kept(folder: Path, data: bytes) -> Path:
    target = folder / f"{hashlib.sha256(data).hexdigest()[:32]}.so"
    folder.mkdir(exist_ok=True)
    if not target.exists():
        target.write_bytes(data)
    return target


def _object(reply: dict[str, Any]) -> bytes:
    if "refused" in reply:
        raise KernelRefused(**reply["refused"])
    if "failed" in reply:
        raise KernelBuildError(reply["failed"])
    return base64.b64decode(reply["object"])


@functools.cache
def _version(tool: str) -> bytes:
    return subprocess.check_output([tool, "--version"])
