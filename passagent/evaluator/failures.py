"""Every kernel of a candidate that does not build, where a call ends at the first of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from passagent.evaluator.explain import explain
from passagent.kernels import cpp, cuda
from passagent.kernels.build import Signature
from passagent.kernels.errors import KernelBuildError, KernelRefused

_PLACE = re.compile(r"^(\S+?(?::\d+:\d+|\(\d+\))): error:", re.MULTILINE)


@contextmanager
def collected(root: Path) -> Iterator[dict[tuple[str, str], dict[str, Any]]]:
    """Explain what does not build, by source and name, and call in its place a kernel that does nothing.

    A source that failed is not built again for other types. `root`: where the candidate's files lie. This
    process computes nothing of use any more: kernels that do nothing stay loaded.
    """
    met: dict[tuple[str, str], dict[str, Any]] = {}

    def tolerant(builder: Callable[..., Path], head: str) -> Callable[..., Path]:
        def build(source: str, name: str, signature: Signature, *arch: str) -> Path:
            try:
                if (source, name) not in met:
                    return builder(source, name, signature, *arch)
            except (KernelBuildError, KernelRefused) as error:
                met[(source, name)] = explain(error, root)
            plain = name.partition("<")[0]
            given = ", ".join(f"{ctype} a{number}" for number, ctype in enumerate(signature.types))
            return builder(f"{head} {plain}({given}) {{}}", plain, signature, *arch)

        return build

    of_cpp, of_cuda = cpp._builder[0], cuda._builder[0]
    cpp._builder[0], cuda._builder[0] = tolerant(of_cpp, "void"), tolerant(of_cuda, "__global__ void")
    try:
        with _triton_collected(root, met):
            yield met
    finally:
        cpp._builder[0], cuda._builder[0] = of_cpp, of_cuda


@contextmanager
def _triton_collected(root: Path, met: dict[tuple[str, str], dict[str, Any]]) -> Iterator[None]:
    """The same for launches of Triton kernels, in a process that has imported Triton.

    An autotuner leaves out a configuration that does not build: while it tries one, its error is its own.
    """
    jit, tuner = (sys.modules.get(f"triton.runtime.{name}") for name in ("jit", "autotuner"))
    if jit is None or tuner is None:
        yield
        return
    run, bench, is_tuning = jit.JITFunction.run, tuner.Autotuner._bench, False

    def tolerant_run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(kernel, *args, **kwargs)
        except Exception as error:
            explained = explain(error, root)
            if is_tuning or explained["kind"] != "compile_error":
                raise
            met.setdefault((kernel.src, kernel.__name__), explained)
            return None

    def tried(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_tuning
        is_tuning = True
        try:
            return bench(*args, **kwargs)
        finally:
            is_tuning = False

    jit.JITFunction.run, tuner.Autotuner._bench = tolerant_run, tried
    try:
        yield
    finally:
        jit.JITFunction.run, tuner.Autotuner._bench = run, bench


def merged(first: str, collected: list[str]) -> str:
    """A subgraph's own error and those collected: the own one only if it is none of these for another dtype.

    Errors of a compiler are the same where they are about the same places of a source.
    """
    places = set(_PLACE.findall("\n".join(collected)))
    is_told = first in collected or (set(_PLACE.findall(first)) or {""}) <= places
    return "\n".join(dict.fromkeys(collected if is_told else [first, *collected]))
